//! Messages as bytes, and back.

use super::{Command, Exit, Malformed, Message, Notice, ReadFile, Reason, Reply, Request, WriteFile};

/// A frame in the making.
struct Frame(Vec<u8>);

impl Frame {
    fn new(tag: u64, kind: u8) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&tag.to_be_bytes());
        bytes.push(kind);
        Self(bytes)
    }

    fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn texts(self, texts: &[String]) -> Self {
        let frame = self.number(texts.len() as u64);
        texts.iter().fold(frame, |frame, text| frame.text(text))
    }

    fn exit(self, exit: Option<Exit>) -> Self {
        match exit {
            None => self.number(0),
            Some(Exit::Code(code)) => self.number(1).number(code.into()),
            Some(Exit::Signal(signal)) => self.number(2).number(signal.into()),
        }
    }

    fn done(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// A frame that is being read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?.try_into().map_err(|_| Malformed)?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Malformed> {
        let length = self.take(4)?.try_into().map_err(|_| Malformed)?;
        self.take(u32::from_be_bytes(length) as usize).map(<[u8]>::to_vec)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    fn texts(&mut self) -> Result<Vec<String>, Malformed> {
        let count = self.number()?;
        (0..count).map(|_| self.text()).collect()
    }

    fn exit(&mut self) -> Result<Option<Exit>, Malformed> {
        Ok(match self.number()? {
            0 => None,
            1 => Some(Exit::Code(self.small()?)),
            2 => Some(Exit::Signal(self.small()?)),
            _ => return Err(Malformed),
        })
    }

    const fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

impl Request {
    /// As a frame.
    pub fn encode(&self, tag: u64) -> Vec<u8> {
        let frame = |kind| Frame::new(tag, kind);
        match self {
            Self::Read(file) => frame(1)
                .text(&file.path)
                .texts(&file.roots)
                .number(file.line)
                .number(file.limit.unwrap_or(u64::MAX))
                .number(file.max_bytes),
            Self::Write(file) => frame(2).text(&file.path).texts(&file.roots).bytes(&file.content),
            Self::Create(command) => {
                let frame = frame(3)
                    .text(&command.id)
                    .text(&command.command)
                    .texts(&command.args)
                    .text(&command.cwd)
                    .number(command.keep)
                    .number(command.env.len() as u64);
                let env = command.env.iter();
                env.fold(frame, |frame, (name, value)| frame.text(name).text(value))
            }
            Self::Output(id) => frame(4).text(id),
            Self::Wait(id) => frame(5).text(id),
            Self::Kill(id) => frame(6).text(id),
            Self::Release(id) => frame(7).text(id),
            Self::Follow(id, from) => frame(8).text(id).number(*from),
            Self::Cancel => frame(9),
        }
        .done()
    }

    /// From a frame without its length: the tag, and the request.
    pub fn decode(frame: &[u8]) -> Result<(u64, Self), Malformed> {
        let mut fields = Fields(frame);
        let tag = fields.number()?;
        let request = match fields.byte()? {
            1 => Self::Read(ReadFile {
                path: fields.text()?,
                roots: fields.texts()?,
                line: fields.number()?,
                limit: Some(fields.number()?).filter(|limit| *limit != u64::MAX),
                max_bytes: fields.number()?,
            }),
            2 => Self::Write(WriteFile {
                path: fields.text()?,
                roots: fields.texts()?,
                content: fields.bytes()?,
            }),
            3 => Self::Create(Command {
                id: fields.text()?,
                command: fields.text()?,
                args: fields.texts()?,
                cwd: fields.text()?,
                keep: fields.number()?,
                env: {
                    let count = fields.number()?;
                    let pair = |_| Ok((fields.text()?, fields.text()?));
                    (0..count).map(pair).collect::<Result<_, _>>()?
                },
            }),
            4 => Self::Output(fields.text()?),
            5 => Self::Wait(fields.text()?),
            6 => Self::Kill(fields.text()?),
            7 => Self::Release(fields.text()?),
            8 => Self::Follow(fields.text()?, fields.number()?),
            9 => Self::Cancel,
            _ => return Err(Malformed),
        };
        fields.end()?;
        Ok((tag, request))
    }
}

impl Message {
    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Reply(tag, reply) => {
                let frame = |kind| Frame::new(*tag, kind);
                match reply {
                    Reply::Content(bytes) => frame(1).bytes(bytes),
                    Reply::Written { created, atomic } => {
                        frame(2).number((*created).into()).number((*atomic).into())
                    }
                    Reply::Done => frame(3),
                    Reply::Output { bytes, total, exit } => frame(4).bytes(bytes).number(*total).exit(*exit),
                    Reply::Exited(exit) => frame(5).exit(Some(*exit)),
                    Reply::Failed(reason, message) => frame(6).number(*reason as u64).text(message),
                }
            }
            Self::Notice(notice) => {
                let frame = |kind| Frame::new(0, kind);
                match notice {
                    Notice::Hello(version) => frame(16).number((*version).into()),
                    Notice::Output(id, from, bytes) => frame(17).text(id).number(*from).bytes(bytes),
                    Notice::Exited(id, exit) => frame(18).text(id).exit(Some(*exit)),
                }
            }
        }
        .done()
    }

    /// From a frame without its length.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(frame);
        let tag = fields.number()?;
        let reply = |reply| Self::Reply(tag, reply);
        let message = match fields.byte()? {
            1 => reply(Reply::Content(fields.bytes()?)),
            2 => reply(Reply::Written {
                created: fields.number()? != 0,
                atomic: fields.number()? != 0,
            }),
            3 => reply(Reply::Done),
            4 => reply(Reply::Output {
                bytes: fields.bytes()?,
                total: fields.number()?,
                exit: fields.exit()?,
            }),
            5 => reply(Reply::Exited(fields.exit()?.ok_or(Malformed)?)),
            6 => {
                let reason = usize::try_from(fields.number()?).map_err(|_| Malformed)?;
                let reason = *Reason::ALL.get(reason).ok_or(Malformed)?;
                reply(Reply::Failed(reason, fields.text()?))
            }
            16 => Self::Notice(Notice::Hello(
                u8::try_from(fields.number()?).map_err(|_| Malformed)?,
            )),
            17 => Self::Notice(Notice::Output(fields.text()?, fields.number()?, fields.bytes()?)),
            18 => Self::Notice(Notice::Exited(fields.text()?, fields.exit()?.ok_or(Malformed)?)),
            _ => return Err(Malformed),
        };
        fields.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{length, read};
    use super::*;

    fn requests() -> Vec<Request> {
        let text = |text: &str| text.to_owned();
        vec![
            Request::Read(ReadFile {
                path: text("/a"),
                roots: vec![text("/"), text("/é")],
                line: 3,
                limit: Some(0),
                max_bytes: 9,
            }),
            Request::Read(ReadFile::default()),
            Request::Write(WriteFile {
                path: text("/a"),
                roots: vec![],
                content: vec![0, 255],
            }),
            Request::Create(Command {
                id: text("t"),
                command: text("c"),
                args: vec![text("x"), text("")],
                env: vec![(text("A"), text("1=1"))],
                cwd: text("/"),
                keep: 7,
            }),
            Request::Output(text("t")),
            Request::Wait(text("t")),
            Request::Kill(text("t")),
            Request::Release(text("t")),
            Request::Follow(text("t"), 5),
            Request::Cancel,
        ]
    }

    fn messages() -> Vec<Message> {
        let exit = Some(Exit::Signal(9));
        let mut all: Vec<Message> = [
            Reply::Content(vec![1]),
            Reply::Written {
                created: true,
                atomic: false,
            },
            Reply::Done,
            Reply::Output {
                bytes: vec![],
                total: 1 << 40,
                exit,
            },
            Reply::Exited(Exit::Code(3)),
        ]
        .into_iter()
        .map(|reply| Message::Reply(8, reply))
        .collect();
        let failed = |reason: &Reason| Message::Reply(1, Reply::Failed(*reason, "no".to_owned()));
        all.extend(Reason::ALL.iter().map(failed));
        all.push(Message::Notice(Notice::Hello(1)));
        all.push(Message::Notice(Notice::Output("t".to_owned(), 4, vec![2])));
        all.push(Message::Notice(Notice::Exited("t".to_owned(), Exit::Code(0))));
        all
    }

    #[test]
    fn frames_round_trip() {
        for request in requests() {
            let bytes = request.encode(77);
            let frame = read(&mut bytes.as_slice()).unwrap().unwrap();
            assert_eq!(Request::decode(&frame), Ok((77, request)));
        }
        for message in messages() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes[4..]), Ok(message));
        }
    }

    #[test]
    fn what_is_cut_or_continued_is_no_frame() {
        let frames = requests().iter().map(|r| r.encode(1)).collect::<Vec<_>>();
        for frame in &frames {
            for end in 4..frame.len() {
                assert_eq!(Request::decode(&frame[4..end]), Err(Malformed));
            }
            assert_eq!(Request::decode(&[&frame[4..], &[0]].concat()), Err(Malformed));
        }
        for message in messages() {
            let frame = message.encode();
            for end in 4..frame.len() {
                assert_eq!(Message::decode(&frame[4..end]), Err(Malformed));
            }
        }
        assert_eq!(length([255; 4]), Err(Malformed));
    }
}
