"""A helper for agents that keep their own loop: it says when to suspend, and a suspended run goes on where it was.

Needs nothing but the standard library; what `adapters` adapt is imported by the agent. Must not import luftpause's
services. Read next: `session`, then `outlook` for what is decided and `checkpoint` for what is kept.
"""

from luftpause_client.errors import (
    CheckpointError,
    ClientError,
    LuftpauseError,
    NotNowError,
    RunCompletedError,
    RunInUseError,
)
from luftpause_client.luftpause import Luftpause
from luftpause_client.outlook import Action, Outlook
from luftpause_client.session import Reservation, Session, session
from luftpause_client.windows import Reading, Window

__all__ = [
    "Action",
    "CheckpointError",
    "ClientError",
    "Luftpause",
    "LuftpauseError",
    "NotNowError",
    "Outlook",
    "Reading",
    "Reservation",
    "RunCompletedError",
    "RunInUseError",
    "Session",
    "Window",
    "session",
]
