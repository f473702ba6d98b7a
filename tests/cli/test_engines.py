"""Which engines `up` takes, and what it says of those that it does not."""

from __future__ import annotations

import concurrent.futures
import pathlib
import socket

import pytest

from tests.cli.commands import Place


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def test_an_engine_that_does_not_answer_is_named_and_nothing_is_left(place: Place) -> None:
    up = place.call("up", "--engine", f"http://127.0.0.1:{place.engine}")
    assert up.returncode == 1
    assert up.stderr == f"luftpause: engine http://127.0.0.1:{place.engine} does not answer: connection refused\n"
    assert not (place.state / "up.json").exists()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("404", "give the API's base, e.g. http://host:8000 or http://host:8000/v1"),
        ("401", "give its key (--engine-key-env NAME after --engine URL, or key_env in a pool file)"),
    ],
)
def test_an_engine_that_lists_no_models_is_refused(place: Place, status: str, said: str) -> None:
    engines = Place(place.folder / "engines", settings={"STANDIN_MODELS": status})
    engines.folder.mkdir()
    with engines.detached("--only", "engines"):
        url = f"http://127.0.0.1:{engines.engine}"
        up = place.call("up", "--engine", f"{url}/api")
        assert up.returncode == 1
        assert up.stderr == f"luftpause: engine {url}/api: GET {url}/api/models answered {status}; {said}\n"
        pool = f'[[replica]]\nname = "a"\nurl = "{url}"\nmodels = ["m"]\n'
        (place.folder / "pool.toml").write_text(pool)
        with place.detached("--pool", "pool.toml"):
            pass


@pytest.mark.parametrize("page", ["<html>hello</html>", '{"data": []}', '{"models": ["a"]}'])
def test_what_answers_anything_but_a_model_list_is_no_engine(place: Place, page: str) -> None:
    engines = Place(place.folder / "engines", settings={"STANDIN_PAGE": page})
    engines.folder.mkdir()
    with engines.detached("--only", "engines"):
        url = f"http://127.0.0.1:{engines.engine}"
        up = place.call("up", "--detach", "--engine", url)
    assert up.returncode == 1
    assert up.stderr == (
        f"luftpause: engine {url}: GET {url}/v1/models answered 200 and lists no models "
        '(expected {"data": [{"id": "…"}, …]}); give the API\'s base, e.g. http://host:8000 or http://host:8000/v1\n'
    )


def test_an_engine_that_speaks_another_protocol_is_told_what_it_said(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.engine)) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(_greet, server, b"SSH-2.0-OpenSSH_9.2\r\n")
        up = place.call("up", "--engine", f"http://127.0.0.1:{place.engine}")
    said = "what listens there speaks no HTTP: 'SSH-2.0-OpenSSH_9.2'"
    assert up.stderr == f"luftpause: engine http://127.0.0.1:{place.engine} does not answer: {said}\n"
    assert up.returncode == 1


def _greet(server: socket.socket, line: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(line)
        connection.recv(4096)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[replica]]\nname = "a"\nurl = "ftp://a"\n', "pool.toml, line 3: 'url' must be"),
        ("[[replica]]\nname = 'a'\nurl = 'http://127.0.0.1:1'\nsize = 3\n", "pool.toml, line 4: unknown key 'size'"),
        ("[[replica]]\nname = 'a'\nurl = 'http://127.0.0.1:1'\nkey_env = 'NO_SUCH'\n", "key_env names NO_SUCH"),
    ],
)
def test_a_bad_pool_file_is_one_line(place: Place, text: str, said: str) -> None:
    (place.folder / "pool.toml").write_text(text)
    up = place.call("up", "--pool", "pool.toml")
    assert up.returncode == 1
    assert said in up.stderr
    assert up.stderr.count("\n") == 1


def test_engines_of_the_command_line_become_a_pool_file_with_their_keys(place: Place) -> None:
    place.settings = {"A_KEY": "secret-1"}
    engines = Place(place.folder / "engines")
    engines.folder.mkdir()
    with engines.detached("--only", "engines"):
        one, two = (f"http://127.0.0.1:{engines.engine + n}" for n in range(2))
        with place.detached("--engine", one, f"--engine={two}", "--engine-key-env", "A_KEY") as up:
            assert "engine  " not in up.stdout
            text = (place.state / "pool.toml").read_text()
            assert 'name = "engine-1"' in text
            assert text.rindex("key_env") > text.index(two)
            assert text.count("key_env") == 1
            assert "secret-1" not in text
