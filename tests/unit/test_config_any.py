"""Whatever stands in a configuration, or behind `-o`: settings, or a sentence with file and line."""

import os
import re
from datetime import date, datetime, time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsguard import config
from fsguard.cli import mountoptions
from fsguard.config import ConfigError, Settings
from fsguard.errors import UsageError

EXAMPLES = int(os.environ.get("FSGUARD_FUZZ", "300"))


def read(text: str) -> Settings | None:
    try:
        return config.parse(text, "c.toml")
    except ConfigError as error:
        assert re.match(r"c\.toml:\d+: ", str(error)), str(error)
        return None


@settings(max_examples=EXAMPLES)
@given(st.text(max_size=200))
@example("x = " + "9" * 5000)
@example("[turns]\nwait = 1" + "0" * 400)
@example("[keep]\nper_path = -1" + "0" * 400)
@example("[turns]\nwait = nan")
@example("a = " + "[" * 5000)
@example("a = " + "{b = " * 5000)
@example("[" + "a." * 5000 + "b]")
@example('[[attribution.cgroup]]\npattern = "a{99999999999999999999}"\ntask = "x"')
@example(f'[[attribution.cgroup]]\npattern = "{"(" * 5000}"\ntask = "x"')
@example('[[attribution.cgroup]]\npattern = "(a)"\ntask = "{0:{1:{2:{3}}}}"')
@example('[[attribution.cgroup]]\npattern = "(a)"\ntask = "{1' + "1" * 5000 + '}"')
def test_any_text(text):
    read(text)


SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["warn", "block", "off", "auto", "short", "{id}", "(?P<id>[0-9]+)", "/docker/", "*.py"]),
    st.dates(),
    st.times(),
    st.datetimes(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(["pattern", "task"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return '"' + "".join(f"\\U{ord(c):08X}" if not c.isalnum() else c for c in value) + '"'
        case datetime() | date() | time():
            return value.isoformat()
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    raise TypeError(value)


@settings(max_examples=EXAMPLES)
@given(
    st.dictionaries(
        st.sampled_from(sorted(config.KEYS)) | st.text(min_size=1, max_size=9), VALUES, max_size=5
    )
)
def test_any_value_for_any_key(values):
    tables: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        table, _, key = name.partition(".")
        tables.setdefault(table, {})[key or "x"] = value
    lines = []
    for table, content in tables.items():
        lines += [f"[{toml(table)}]", *(f"{toml(key)} = {toml(value)}" for key, value in content.items())]
    found = read("\n".join(lines))
    if found is not None:
        assert 0 <= found.turn_wait <= 600 and found.policy in ("warn", "block", "off")


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=300))
def test_any_file(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(raw)
    try:
        config.load(str(path))
    except ConfigError as error:
        assert str(path) in str(error)


WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["policy", "wait", "io", "cache", "operator", "config", "ro", "remount", "x-a", "user_id"]
    ),
    st.builds(
        "{}={}".format,
        st.sampled_from(
            ["policy", "wait", "io", "cache", "operator", "config", "state_dir", "remount", "user"]
        ),
        st.text(max_size=12)
        | st.sampled_from(["block", "10s", "9" * 5000, "1.5min", "/etc/x", "a,b", '"', "\\"]),
    ),
)


@settings(max_examples=EXAMPLES)
@given(st.lists(WORDS, max_size=6).map(",".join), st.booleans())
def test_any_mount_options(text, sloppy):
    try:
        found = mountoptions.parse(text, sloppy=sloppy)
    except UsageError:
        return
    assert found.wait is None or 0 <= found.wait <= mountoptions.MAX_WAIT
    assert found.policy in (None, *mountoptions.POLICIES) and found.io in (None, *mountoptions.IO_MODES)
    assert all(path is None or path.startswith("/") for path in (found.config, found.state_dir))


@pytest.mark.parametrize("word", ["policy=block", "operator=a,b", 'config=/a"b\\c', "wait=10s"])
def test_what_is_quoted_is_one_option(word):
    quoted = "".join(f"\\{c}" for c in word)
    assert mountoptions.split(f"ro,{quoted},rw") == ["ro", word, "rw"]
