"""The file of tool servers."""

from __future__ import annotations

import pathlib

import pytest

from runtime.tool_config import Server, ToolConfigError, load, parse


def test_every_key_is_read() -> None:
    text = """
[[server]]
name = "wiki"
command = ["python", "-m", "wiki"]
env = ["WIKI_URL"]
timeout_s = 5
tools = ["search"]

[[server]]
name = "far"
url = "https://far.example/mcp"
headers_env = { Authorization = "FAR_KEY" }
"""
    assert parse(text) == (
        Server("wiki", command=("python", "-m", "wiki"), env=("WIKI_URL",), timeout_s=5, tools=("search",)),
        Server("far", url="https://far.example/mcp", headers_env={"Authorization": "FAR_KEY"}),
    )


HEAD = '[[server]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tools.toml: expected at least one [[server]] table"),
        ("server = 3", "tools.toml: expected at least one [[server]] table"),
        ("[[server]\n", "tools.toml: "),
        ("size = 3\n" + HEAD, "tools.toml, line 1: unknown key 'size'"),
        (HEAD + "url = 'http://a'\n\ncolour = 1\n", "tools.toml, line 5: unknown key 'colour'; known: command, env, "),
        ("[[server]]\nurl = 'http://a'", "tools.toml, line 1: server 1 has no 'name'"),
        ("[[server]]\nname = 'a b'\nurl = 'http://a'", "tools.toml, line 2: 'name' must be 1 to 32 of"),
        (HEAD, "tools.toml, line 1: server 'a' must have either 'command' or 'url'"),
        (HEAD + "url = 'http://a'\ncommand = ['b']", "must have either 'command' or 'url'"),
        (HEAD + "url = 'ftp://a'", "tools.toml, line 3: 'url' must be an http:// or https:// URL"),
        (HEAD + "command = 'b'", "tools.toml, line 3: 'command' must be a list"),
        (HEAD + "command = []", "tools.toml, line 3: 'command' must be a list"),
        (HEAD + "command = ['b', 3]", "tools.toml, line 3: 'command' must be a list"),
        (HEAD + "url = 'http://a'\ntimeout_s = 0", "tools.toml, line 4: 'timeout_s' must be a number of seconds"),
        (HEAD + "url = 'http://a'\ntimeout_s = nan", "tools.toml, line 4: 'timeout_s' must be a number of seconds"),
        (HEAD + "url = 'http://a'\ntimeout_s = true", "tools.toml, line 4: 'timeout_s' must be a number of seconds"),
        (HEAD + "url = 'http://a'\nenv = ['B']", "tools.toml, line 4: 'env' is for servers with a 'command'"),
        (HEAD + "command = ['b']\nheaders_env = {}", "line 4: 'headers_env' is for servers with a 'url'"),
        (HEAD + "url = 'http://a'\nheaders_env = { 'a b' = 'C' }", "line 4: 'headers_env' must be a table"),
        (HEAD + "url = 'http://a'\ntools = []", "line 4: 'tools' must be a list of names of tools"),
        ((HEAD + "url = 'http://a'\n") * 2, "tools.toml, line 5: name 'a' is used twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ToolConfigError) as caught:
        parse(text, "tools.toml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_runs_in_the_folder_of_the_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/tools.toml").write_text(HEAD + "command = ['./serve']")
    monkeypatch.chdir(tmp_path)
    assert [server.folder for server in load(pathlib.Path("sub/tools.toml"))] == [tmp_path / "sub"]


def test_a_file_that_is_not_there_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ToolConfigError, match=r"tools file .*none.toml: No such file"):
        load(tmp_path / "none.toml")


def test_variables_are_passed_on_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "secret\n")
    assert Server("a", command=("b",), env=("FAR_KEY",)).environment() == {"FAR_KEY": "secret\n"}
    assert Server("a", url="http://a", headers_env={"X-Key": "FAR_KEY"}).headers() == {"X-Key": "secret"}


def test_a_variable_that_is_not_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAR_KEY", raising=False)
    with pytest.raises(ToolConfigError, match="tool server 'a': headers_env names FAR_KEY, which is not set"):
        Server("a", url="http://a", headers_env={"X-Key": "FAR_KEY"}).headers()
