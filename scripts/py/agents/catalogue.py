"""Catalogue files: the built-in entries' images, on the network of the model provider."""

import json

MODEL = "http://mockllm:8199/v1"

CODEX = {
    "model": '"mock-model"', "model_provider": '"mock"', "approval_policy": '"untrusted"',
    "sandbox_mode": '"danger-full-access"',
    "model_providers.mock": '{name="mock",base_url="%s",env_key="OPENAI_API_KEY",wire_api="responses",'
                            'supports_websockets=false,request_max_retries=0}' % MODEL,
}
CODEX_ARGS = [part for key, value in CODEX.items() for part in ("-c", key + "=" + value)]
# What is ignored when a program begins stays ignored, unless it says otherwise.
DEAF = ["sh", "-c", "trap '' TERM; exec codex-acp \"$@\"", "codex-acp"]
KIMI = {"KIMI_MODEL_NAME": "mock-model", "KIMI_MODEL_API_KEY": "mock", "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_BASE_URL": MODEL}


def entry(name, network, image=None, command=None, args=(), env=None, store=None):
    # TOML's strings and lists are JSON's.
    fields = {"id": name, "name": name, "image": "kandev/%s:latest" % (image or name), "protocol": "acp",
              "network": network, "args": list(args)}
    if command:
        fields["command"] = command
    lines = ["%s = %s" % (key, json.dumps(value)) for key, value in fields.items()]
    lines += ["[env]", *("%s = %s" % (key, json.dumps(value)) for key, value in (env or {}).items())]
    for source, target in (("{workspace}", "/workspace"), ("{session_store}", store)):
        if target:
            lines += ["[[mounts]]", "source = %s" % json.dumps(source), "target = %s" % json.dumps(target)]
    return "\n".join(lines) + "\n"


def catalogue(network):
    """The types by name; what is not here is the built-in one."""
    codex = {"args": CODEX_ARGS, "env": {"OPENAI_API_KEY": "mock"}, "store": "/root/.codex"}
    return {
        "fast-agent": entry("fast-agent", network, args=["--model", "passthrough", "--shell"]),
        "kimi-code": entry("kimi-code", network, args=["acp"], env=KIMI, store="/root/.kimi-code"),
        "codex-acp": entry("codex-acp", network, **codex),
        "codex-deaf": entry("codex-deaf", network, image="codex-acp", command=DEAF, **codex),
    }
