"""What can go wrong, as exceptions. Pure.

Wrong arguments are TypeError and ValueError; what a turn raises is its own.
"""

from __future__ import annotations

from luftpause_client.outlook import Outlook


class ClientError(Exception):
    """Base of all that follows."""


class CheckpointError(ClientError):
    """A checkpoint that cannot be read (torn, foreign, of a later version) or not be written as it is."""


class RunInUseError(ClientError):
    """Another session, here or in another process, has the run open."""


class RunCompletedError(ClientError):
    """The run was completed: it takes no more turns and no more checkpoints."""


class NotNowError(ClientError):
    """The turn was not begun, or a rate limit refused it. Nothing of it counts as spent."""

    def __init__(self, outlook: Outlook) -> None:
        super().__init__(outlook.reason)
        self.outlook = outlook
        """What to do instead."""


class LuftpauseError(ClientError):
    """luftpause refuses what it was asked; its message tells why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"luftpause answered {status}: {message}")
        self.status = status
