"""Packets of sftp, made by hand, over the real ssh client: for what no client would send."""
import struct
import subprocess


class Sftp:
    def __init__(self, rig, user="alice", options=()):
        words = rig.ssh_args(user, *options)
        self.process = subprocess.Popen(words[:-1] + ["-s", words[-1], "sftp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self.next_id = 0
        self.replies = {}
        self.write(struct.pack(">IBI", 5, 1, 3))
        reply = self.read_packet()
        assert reply[0] == 2, reply

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.kill() if kind else self.finish()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def finish(self):
        """EOF, and the exit status."""
        self.process.stdin.close()
        self.process.stdin = None
        self.process.communicate(timeout=60)
        return self.process.returncode

    @staticmethod
    def string(s):
        s = s.encode() if isinstance(s, str) else s
        return struct.pack(">I", len(s)) + s

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read_packet(self):
        head = self.process.stdout.read(4)
        if len(head) < 4:
            raise EOFError
        body = self.process.stdout.read(struct.unpack(">I", head)[0])
        return body

    def send(self, kind, body):
        self.next_id += 1
        self.write(struct.pack(">IBI", 5 + len(body), kind, self.next_id) + body)
        return self.next_id

    def reply(self, request=None):
        """(type, body) of the reply to a request, or of the next."""
        if request in self.replies:
            return self.replies.pop(request)
        while True:
            p = self.read_packet()
            kind, number = struct.unpack(">BI", p[:5])
            if request is None or number == request:
                return kind, p[5:]
            self.replies[number] = (kind, p[5:])

    def status(self):
        kind, body = self.reply()
        assert kind == 101, (kind, body)
        return struct.unpack(">I", body[:4])[0]

    def request_status(self, kind, body, wanted=101):
        """The code of a status; None where another reply was wanted and came."""
        got, reply = self.reply(self.send(kind, body))
        assert got == wanted, (got, reply)
        return struct.unpack(">I", reply[:4])[0] if got == 101 else None

    def open_status(self, path, flags):
        kind, body = self.reply(self.send(3, self.string(path) + struct.pack(">II", flags, 0)))
        return 0 if kind == 102 else struct.unpack(">I", body[:4])[0]

    def open(self, path, flags):
        kind, body = self.reply(self.send(3, self.string(path) + struct.pack(">II", flags, 0)))
        assert kind == 102, (path, kind, body)
        return body[4:]

    def close_handle(self, handle):
        assert self.request_status(4, self.string(handle)) == 0

    def data(self, request):
        """Bytes; None: the end."""
        kind, body = self.reply(request)
        if kind == 101:
            assert struct.unpack(">I", body[:4])[0] == 1, body
            return None
        assert kind == 103, (kind, body)
        return body[4:]

    def read(self, handle, at, n=32768):
        return self.data(self.send(5, self.string(handle) + struct.pack(">QI", at, n)))

    def names(self, folder):
        kind, body = self.reply(self.send(11, self.string(folder)))
        assert kind == 102, body
        handle, names = body[4:], []
        while True:
            kind, body = self.reply(self.send(12, self.string(handle)))
            if kind == 101:
                self.close_handle(handle)
                return names
            count, = struct.unpack(">I", body[:4])
            body = body[4:]
            for _ in range(count):
                n, = struct.unpack(">I", body[:4])
                names.append(body[4:4 + n])
                body = body[4 + n:]
                n, = struct.unpack(">I", body[:4])
                body = body[4 + n:]
                flags, = struct.unpack(">I", body[:4])
                body = body[4 + (8 if flags & 1 else 0) + (8 if flags & 2 else 0) + (4 if flags & 4 else 0) + (8 if flags & 8 else 0):]
