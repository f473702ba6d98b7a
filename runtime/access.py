"""Whose runs a request may see and touch: all, or its token's caller's own. No I/O.

The runs of others do not exist for a bound token: the answer is the same as for a handle that nobody has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from common.grants import CLASSES, ForbiddenError, Grant
from runtime.journal import Journal
from runtime.orders import SpawnRequest, check_count, clean_caller
from runtime.refusals import NotAllowedError, UnknownRunError
from runtime.tree import Tree


class Access:
    """One request's."""

    def __init__(self, grant: Grant, tree: Tree) -> None:
        self._grant = grant
        self._tree = tree

    def covers(self, journal: Journal) -> bool:
        """Whether a run may be seen."""
        return self._grant.caller is None or journal.run.caller == self._grant.caller

    def check(self, argument: str, handles: Sequence[str]) -> None:
        """Raises UnknownRunError for the first of `handles`, which came in `argument`, that may not be seen."""
        check_count(argument, handles)
        for handle in handles if self._grant.caller is not None else ():
            if not self.covers(self._tree.get(argument, handle)):
                raise UnknownRunError(argument, handle)

    def may_drive(self, journal: Journal) -> bool:
        """Whether what the request does may lead to turns of the run, or of one that takes its class from it."""
        return self.covers(journal) and journal.run.order.run_class in self._grant.classes

    def check_drive(self, argument: str, handle: str) -> None:
        """Raises UnknownRunError for a run that may not be seen, NotAllowedError for one of a class that the token does
        not allow."""
        self.check(argument, [handle])
        journal = self._tree.get(argument, handle)
        if not self.may_drive(journal):
            allowed = " or ".join(self._grant.classes)
            problem = f"expected a run of class {allowed}, not {journal.run.order.run_class}: the token allows no other"
            raise NotAllowedError(argument, problem)

    def check_spawn(self, request: SpawnRequest) -> SpawnRequest:
        """`request` with the class that the token gives it; a child's is its parent's, whoever asks.

        Raises NotAllowedError for a class that the token does not allow, be it a parent's, UnknownRunError for a parent
        that may not be seen.
        """
        if request.parent is not None:
            self.check_drive("parent", request.parent)
        if request.service_class is None and request.parent is not None:
            return request
        if request.service_class not in (None, *CLASSES):
            return request  # `orders` refuses it, whatever the token
        try:
            return replace(request, service_class=self._grant.class_of(request.service_class or ""))
        except ForbiddenError as error:
            raise NotAllowedError("serviceClass", str(error)) from None

    @property
    def decision_class(self) -> str:
        """The class of a decision, for which somebody waits: interactive, unless the token allows none such."""
        return self._grant.class_of("")

    def caller_of(self, named: str) -> str:
        """The caller of a request that names `named` (empty: none). Raises NotAllowedError."""
        try:
            return self._grant.caller_of(clean_caller(named))
        except ForbiddenError as error:
            raise NotAllowedError("caller", str(error)) from None
