"""Frames on the socket between the service and an engine."""

import struct

HEADER = struct.Struct("!Q?Q")  # length, whether more of it follows, number


FRAME = 1 << 18  # bytes: a long message comes in several, and others between them
