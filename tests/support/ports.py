"""TCP ports for servers of a test, while other tests run beside it."""
import random
import socket

held = []


def free_port():
    """A port on 127.0.0.1 that nothing listens at and no other test will take.

    A port that the kernel picks can be given to somebody else between our look and the server's bind.  So it is one below the
    range that the kernel gives out, and a UDP socket of the same number, open until this process ends, keeps other tests off it."""
    while True:
        port = random.randrange(10000, 32000)
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        held.append(mark)
        return port
