"""A gRPC client that knows a cluster only by its .proto file: prints the names of the processes, then what becomes of
messages that the coordinator must refuse.

status.py PROTO_FOLDER ADDRESS [SECRET]
"""

import hashlib
import hmac
import os
import socket
import sys
import tempfile
import threading

import grpc
from grpc_tools import protoc

folder, address, secret = sys.argv[1], sys.argv[2], (sys.argv[3:] or [""])[0].encode()

made = tempfile.mkdtemp()
if protoc.main(["", f"-I{folder}", f"--python_out={made}", f"--grpc_python_out={made}", "control.proto"]):
    sys.exit("control.proto does not compile")
sys.path.insert(0, made)
import control_pb2 as messages  # noqa: E402
import control_pb2_grpc as services  # noqa: E402


def exactly(stream, n):
    data = b""
    while len(data) < n:
        part = stream.recv(n - len(data))
        if not part:
            sys.exit("refused before HTTP/2")
        data += part
    return data


def proved():
    """A connection on which both sides have proved the secret."""
    host, port = address.rsplit(":", 1)
    stream = socket.create_connection((host, int(port)))
    mac = lambda role: hmac.new(secret, role + challenge + answer, hashlib.sha256).digest()
    challenge, answer = exactly(stream, 32), os.urandom(32)
    stream.sendall(answer + mac(b"connect"))
    proof = exactly(stream, 32)
    if proof == bytes(32):
        sys.exit("refused before HTTP/2")
    if not hmac.compare_digest(proof, mac(b"accept")):
        sys.exit("the coordinator does not have the secret")
    return stream


def pump(source, sink):
    while data := source.recv(1 << 16):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def forwarder():
    """An address of this host behind which the proof is over: gRPC clients cannot do it themselves."""
    listener = socket.create_server(("127.0.0.1", 0))

    def forward():
        while True:
            near = listener.accept()[0]
            far = proved()
            for ends in [(near, far), (far, near)]:
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=forward, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]


if secret:
    proved().close()
channel = grpc.insecure_channel(forwarder() if secret else address)
control = services.ControlStub(channel)
report = control.Status(messages.StatusRequest(), timeout=10)
print("members", *sorted(m.name for m in report.members))


def refused(join_or_heartbeat):
    try:
        for _ in control.Attend(iter([join_or_heartbeat]), timeout=10):
            pass
        return "OK"
    except grpc.RpcError as e:
        return e.code().name


print("role", refused(messages.FromMember(join=messages.Join(name="x"))))
print("member", refused(messages.FromMember(heartbeat=messages.Heartbeat())))
print("large", refused(messages.FromMember(join=messages.Join(role=1, name="x" * (5 << 20)))))
garbage = channel.stream_stream("/thalweg.control.v1.Control/Attend")
try:
    list(garbage(iter([b"\xff" * 100]), timeout=10))
    print("garbage OK")
except grpc.RpcError as e:
    print("garbage", e.code().name)
print("epoch", control.Status(messages.StatusRequest(), timeout=10).epoch >= report.epoch)
