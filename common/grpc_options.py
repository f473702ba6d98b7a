"""What the gRPC servers take as a message: how large, and not compressed. Pure."""

from __future__ import annotations

_IDENTITY_ONLY = 1
"""The set of compressions that has none: bit 0 is the identity (`grpc_compression_algorithm` in gRPC's
`compression_types.h`)."""


def message_options(bytes_max: int) -> tuple[tuple[str, int], ...]:
    """Options of a server whose messages, either way, have at most `bytes_max`.

    A compressed request ends with UNIMPLEMENTED: 60 KB of it may unpack to 60 MB.
    """
    return (
        ("grpc.max_receive_message_length", bytes_max),
        ("grpc.max_send_message_length", bytes_max),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
    )
