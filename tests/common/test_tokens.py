"""The tokens file, and who is let in by it."""

from __future__ import annotations

import pathlib

import pytest
from pydantic import SecretStr

from common.auth import Guard
from common.grants import ANYTHING, ForbiddenError, Grant
from common.ids import Caller
from common.tokens import TokensError, load, parse
from dataplane.config import DataplaneConfig

ALICE = '[[token]]\nname = "alice"\nsecret_env = "ALICE_TOKEN"\ncaller = "alice"\n'
NIGHTLY = '[[token]]\nname = "nightly"\nsecret_file = "nightly"\nclasses = ["batch"]\n'


def bearer(secret: str) -> str:
    return f"Bearer {secret}"


def test_secrets_come_from_environment_and_files_beside_the_tokens_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_TOKEN", "a-secret")
    (tmp_path / "nightly").write_text("b-secret\n")
    (tmp_path / "tokens.toml").write_text(ALICE + NIGHTLY)
    assert load(tmp_path / "tokens.toml", "shared") == {
        "a-secret": Grant("alice", Caller("alice")),
        "b-secret": Grant("nightly", None, ("batch",)),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected at least one [[token]] table"),
        ('[[token]]\nsecret_env = "A"\n', ", line 1: token 1 has no 'name'"),
        ('[[token]]\nname = "a"\n', ", line 1: token 'a' must have either 'secret_env' or 'secret_file'"),
        (ALICE + 'secret_file = "x"\n', "must have either"),
        (ALICE + ALICE, ", line 6: name 'alice' is used twice"),
        (ALICE + "classes = []\n", ", line 5: 'classes' must be a list of interactive and batch"),
        (ALICE + 'classes = ["urgent"]\n', "'classes' must be"),
        ('[[token]]\nname = "a"\nsecret_env = "A"\ncaller = " a"\n', ", line 4: 'caller' must be 1 to 128 bytes"),
        ('[[token]]\nname = "a"\nsecret = "hunter2"\n', ", line 3: unknown key 'secret'; known: caller, classes, name"),
    ],
)
def test_a_wrong_tokens_file_is_told_by_line_and_key_and_never_by_secret(text: str, said: str) -> None:
    with pytest.raises(TokensError) as told:
        parse(text, "tokens.toml")
    assert said in str(told.value)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        (("shared", "b"), "token 'alice': its secret is that of LUFTPAUSE_TOKEN"),
        (("b", "b"), "token 'nightly': its secret is that of token 'alice'"),
        (("", "b"), "token 'alice': its secret is empty"),
        (("a b", "b"), "token 'alice': secret_env ALICE_TOKEN: the secret must be printable ASCII without spaces"),
    ],
)
def test_a_secret_that_binds_nobody_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, secrets: tuple[str, str], said: str
) -> None:
    monkeypatch.setenv("ALICE_TOKEN", secrets[0])
    (tmp_path / "nightly").write_text(secrets[1])
    (tmp_path / "tokens.toml").write_text(ALICE + NIGHTLY)
    with pytest.raises(TokensError) as told:
        load(tmp_path / "tokens.toml", "shared")
    assert str(told.value) == f"{tmp_path / 'tokens.toml'}: {said}"


def test_further_tokens_need_the_one_that_services_show(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="LUFTPAUSE_TOKENS: expected LUFTPAUSE_TOKEN too"):
        DataplaneConfig(tokens=tmp_path / "tokens.toml").guard()
    with pytest.raises(SystemExit, match=r"tokens\.toml: No such file"):
        DataplaneConfig(token=SecretStr("x"), tokens=tmp_path / "tokens.toml").guard()


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer secre", "Bearer secrets", "Bearer SECRET", "Basic secret",
     "secret", "Bearer secret, Bearer secret", b"Bearer \xff\xfe", "Bearer \ud800"],
)  # fmt: skip
def test_only_a_whole_token_is_let_in(shown: str | bytes | None) -> None:
    assert Guard("secret").admit(shown) is None


def test_every_token_is_let_in_with_what_it_allows() -> None:
    alice = Grant("alice", Caller("alice"))
    guard = Guard("secret", {"other": alice})
    assert guard.admit("bearer  secret ") is ANYTHING
    assert guard.admit(b"Bearer other") is alice
    assert (guard.is_open, Guard().is_open, Guard().admit(None)) == (False, True, ANYTHING)


def test_a_grant_gives_its_caller_and_class_and_no_other() -> None:
    grant = Grant("nightly", Caller("alice"), ("batch",))
    assert (grant.caller_of(Caller("")), grant.caller_of(Caller("alice")), grant.class_of("")) == (
        "alice",
        "alice",
        "batch",
    )
    with pytest.raises(ForbiddenError, match="expected 'alice' or nothing"):
        grant.caller_of(Caller("bob"))
    with pytest.raises(ForbiddenError, match="expected batch"):
        grant.class_of("interactive")
    assert (ANYTHING.caller_of(Caller("bob")), ANYTHING.class_of(""), ANYTHING.is_bound) == (
        "bob",
        "interactive",
        False,
    )
