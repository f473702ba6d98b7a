"""What is asked of engines for a decision, and what is read of their answers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dataplane import decision
from dataplane.decision import Decision
from dataplane.errors import ApiError

LABELS = ["billing", "bill", "other"]


def completion(*alternatives: tuple[str, float], first: str | None = None) -> bytes:
    """A reply of one token with these alternatives; the first one was taken unless `first` was."""
    told = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in alternatives]
    taken: dict[str, Any] = {"token": first, "logprob": -0.5} if first is not None else told[0]
    content = [{**taken, "top_logprobs": told}]
    return json.dumps({"choices": [{"message": {"content": "x"}, "logprobs": {"content": content}}]}).encode()


def read(reply: bytes, labels: list[str] = LABELS) -> Decision:
    """The decision in `reply`."""
    told = decision.read_choice(reply, labels, "m", "engine-0")
    assert isinstance(told, Decision), told
    return told


def test_options_are_lettered_so_that_labels_with_the_same_first_token_differ() -> None:
    body = json.loads(decision.choose_body("pay me", LABELS, "m"))
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)
    assert "A) billing\nB) bill\nC) other" in body["messages"][0]["content"]
    told = read(completion(("B", -0.1), ("A", -2.5)))
    assert told.label == "bill"
    assert told.unscored == ["other"]


def test_decisions_with_the_same_labels_share_a_prefix() -> None:
    one, two = (json.loads(decision.choose_body(text, LABELS, "m"))["messages"][0]["content"] for text in "12")
    shared = one.index("Text:\n1")
    assert one[:shared] == two[:shared]
    assert "C) other" in one[:shared]


def test_probabilities_add_up_to_one_over_the_scored_labels() -> None:
    told = read(completion(("A", math.log(0.3)), ("B", math.log(0.1)), ("The", math.log(0.6))))
    assert list(told.probabilities) == ["billing", "bill"]
    assert told.probabilities["billing"] == pytest.approx(0.75)
    assert sum(told.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("token", ["A", " A", "\u2581A", "\u0120A", "(A", "A)", "**A", "\nA"])
def test_a_letter_counts_with_what_may_stand_around_it(token: str) -> None:
    assert read(completion(("B", -1.0), (token, -0.5))).label == "billing"


def test_tokens_of_the_same_letter_count_together() -> None:
    told = read(completion(("B", math.log(0.4)), ("A", math.log(0.3)), (" A", math.log(0.3))))
    assert told.label == "billing"
    assert told.probabilities["billing"] == pytest.approx(0.6)


@pytest.mark.parametrize("token", ["a", "AB", "D", "Answer", "", "bill"])
def test_other_tokens_are_no_option(token: str) -> None:
    assert read(completion(("B", -3.0), (token, -0.1))).probabilities == {"bill": 1.0}


def test_the_token_taken_counts_once_whether_or_not_it_is_listed() -> None:
    told = read(completion(("B", math.log(0.5)), first="A"))
    assert set(told.probabilities) == {"billing", "bill"}
    twice = read(completion(("A", -0.5), ("B", -0.5), first="A"))
    assert twice.probabilities["billing"] == pytest.approx(0.5)


def test_a_probability_that_the_engine_does_not_know_leaves_its_label_unscored() -> None:
    assert read(completion(("A", -0.1), ("B", -9999.0), ("C", -1000.0))).unscored == ["bill", "other"]


@pytest.mark.parametrize("logprobs", [None, {"content": None}, {"content": []}, {}])
def test_an_engine_without_logprobs_is_told_apart(logprobs: Any) -> None:
    reply = json.dumps({"choices": [{"message": {"content": "A"}, "logprobs": logprobs}]}).encode()
    told = decision.read_choice(reply, LABELS, "m", "engine-0")
    assert isinstance(told, ApiError)
    assert (told.status, told.code) == (422, "no_logprobs")
    assert told.message.startswith("labels: engine engine-0 gives no log probabilities")


def test_a_reply_that_begins_with_no_letter_is_no_decision() -> None:
    told = decision.read_choice(completion(("<think>", -0.01), ("So", -5.0)), LABELS, "m", "engine-0")
    assert isinstance(told, ApiError)
    assert (told.status, told.code) == (422, "labels_unscored")
    assert "engine-0, which began with '<think>'" in told.message


@pytest.mark.parametrize("reply", [b"", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"logprobs": 3}]}'])
def test_what_is_no_completion_is_none(reply: bytes) -> None:
    assert decision.read_choice(reply, LABELS, "m", "engine-0") is None


def test_a_classifier_tells_the_probability_of_the_label_it_names() -> None:
    row = {"index": 0, "label": "spam", "probs": [0.2, 0.8], "num_classes": 2}
    told = decision.read_classification(json.dumps({"data": [row]}).encode(), "m")
    assert told == Decision("spam", {"spam": 0.8}, [], "m", [0.2, 0.8])


def test_a_class_without_a_name_is_numbered() -> None:
    told = decision.read_classification(b'{"data": [{"label": null, "probs": [0.1, 0.7, 0.2]}]}', "m")
    assert told is not None
    assert told.label == "LABEL_1"


def test_a_classifier_may_tell_no_probabilities() -> None:
    assert decision.read_classification(b'{"data": [{"label": "spam"}]}', "m") == Decision("spam", {}, [], "m")


@pytest.mark.parametrize("reply", [b"", b"{}", b'{"data": []}', b'{"data": [{}]}', b'{"data": [{"probs": ["x"]}]}'])
def test_what_is_no_classification_is_none(reply: bytes) -> None:
    assert decision.read_classification(reply, "m") is None
