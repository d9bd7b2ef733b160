//! Reading logs: every filter, alone and together.

use serde_json::{Value, json};

use crate::support::Stack;

/// Messages, total, next cursor.
async fn read(stack: &Stack, id: &str, query: &str) -> (Vec<String>, i64, Option<String>) {
    let page = stack.get(&format!("/agents/{id}/logs?{query}")).await.expect(200);
    let messages = page["logs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["message"].as_str().unwrap().to_owned());
    let next = page["next_cursor"].as_str().map(str::to_owned);
    (messages.collect(), page["total"].as_i64().unwrap(), next)
}

fn lines(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|n| format!("{n:08} x")).collect()
}

#[tokio::test]
async fn logs_are_filtered_and_paged() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    stack.turn(&id, "/stderr-flood 250 10").await;
    // stdout is read by itself: the first turn's lines of stderr may still be on their way.
    stack
        .until(&format!("/agents/{id}/logs?stream=stderr"), |l| l["total"] == 250)
        .await;
    stack
        .turn(
            &id,
            "/stderr ERROR: 100% _broken_\n/stderr WARN: half broken\n/raw plain stdout",
        )
        .await;
    stack
        .until(&format!("/agents/{id}/logs?stream=stderr"), |l| l["total"] == 252)
        .await;

    let (all, total, next) = read(&stack, &id, "stream=stderr&tail=1000").await;
    assert_eq!((all.len(), total, next), (252, 252, None));
    assert_eq!(all[..250], lines(1..=250));
    let (tail, total, next) = read(&stack, &id, "stream=stderr").await;
    assert_eq!(
        (tail.len(), total, next),
        (100, 252, None),
        "the last hundred unless told otherwise"
    );
    assert_eq!(tail, all[152..]);
    assert_eq!(
        read(&stack, &id, "stream=stderr&tail=0").await,
        (vec![], 252, None)
    );
    assert_eq!(
        read(&stack, &id, "stream=stdout").await,
        (vec!["plain stdout".to_owned()], 1, None)
    );
    assert_eq!(read(&stack, &id, "stream=stdout,stderr").await.1, 253);

    // Page by page, with and without a filter that needs every line.
    for filter in ["stream=stderr", "stream=stderr&q=x"] {
        let (mut found, mut after, mut pages) = (Vec::new(), "0".to_owned(), 0);
        loop {
            let (page, total, next) = read(&stack, &id, &format!("{filter}&tail=60&after={after}")).await;
            assert_eq!(total, if filter.ends_with('x') { 250 } else { 252 });
            found.extend(page);
            pages += 1;
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(
            (found.len(), pages),
            (if filter.ends_with('x') { 250 } else { 252 }, 5),
            "{filter}"
        );
        assert_eq!(found[..250], all[..250]);
    }

    let both = vec!["ERROR: 100% _broken_".to_owned(), "WARN: half broken".to_owned()];
    assert_eq!(read(&stack, &id, "q=broken").await, (both.clone(), 2, None));
    assert_eq!(
        read(&stack, &id, "q=%25%20_").await,
        (both[..1].to_vec(), 1, None),
        "no pattern, a text"
    );
    assert_eq!(read(&stack, &id, "q=BROKEN").await.1, 0);
    assert_eq!(
        read(&stack, &id, "level=error").await,
        (both[..1].to_vec(), 1, None)
    );
    assert_eq!(
        read(&stack, &id, "level=error,warn&stream=stderr").await,
        (both.clone(), 2, None)
    );
    assert_eq!(read(&stack, &id, "level=error&stream=stdout").await.1, 0);

    // The boundary itself belongs to 'since' and not to 'until'.
    let page = stack.get(&format!("/agents/{id}/logs?q=ERROR")).await.expect(200);
    let at = page["logs"][0]["timestamp"].as_str().unwrap().to_owned();
    let since = read(&stack, &id, &format!("stream=stderr&since={at}&tail=1000"))
        .await
        .0;
    let until = read(&stack, &id, &format!("stream=stderr&until={at}&tail=1000"))
        .await
        .0;
    assert!(since.contains(&both[0]) && !until.contains(&both[0]), "{since:?}");
    assert_eq!((until.len() + since.len(), &until[0]), (252, &all[0]));

    let entry: &Value = &page["logs"][0];
    assert_eq!(
        (&entry["stream"], &entry["level"]),
        (&json!("stderr"), &json!("error"))
    );
    let event = &stack.events(&id).await[entry["seq"].as_u64().unwrap() as usize - 1];
    assert_eq!(
        (&event["kind"], &event["data"]["message"]),
        (&json!("log"), &entry["message"])
    );
    for bad in [
        "tail=10001",
        "tail=-1",
        "stream=stdin",
        "level=fatal",
        "since=yesterday",
        "after=x",
    ] {
        stack
            .get(&format!("/agents/{id}/logs?{bad}"))
            .await
            .refused(400, "validation_error");
    }
    stack.settle().await;
}
