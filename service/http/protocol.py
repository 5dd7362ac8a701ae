"""httptools under uvicorn, with a limit that it lacks."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_FRAMING = 64 << 10  # bytes


class Protocol(HttpToolsProtocol):
    """Closes a connection whose request line, headers, chunk sizes and trailers take more than
    MOST_FRAMING bytes beyond the size of the body. The parser keeps them all, and takes quadratic
    time for a long one."""

    _framing = (
        0  # bytes received for the present request, without its body, minus those of its body
    )

    def on_message_begin(self) -> None:
        self._framing = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._framing -= 2 * len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._framing += len(data)
        if self._framing > MOST_FRAMING and not self.transport.is_closing():
            self.send_400_response(f"The headers exceed {MOST_FRAMING} bytes: send fewer.")
