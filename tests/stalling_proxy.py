"""A proxy that can stall: it then accepts connections and passes nothing on."""

import contextlib
import socket
import threading


class StallingProxy:
    """Passes on what comes to its `address` to a port of this machine, except while it stalls."""

    def __init__(self, port):
        self.port, self.flows = port, threading.Event()
        self.flows.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):  # Closed.
            while True:
                asking, _ = self.listener.accept()
                threading.Thread(target=self._connect, args=(asking,), daemon=True).start()

    def _connect(self, asking):
        self.flows.wait()
        with contextlib.suppress(OSError):
            answering = socket.create_connection(("127.0.0.1", self.port))
            for way in ((asking, answering), (answering, asking)):
                threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.flows.wait()
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
