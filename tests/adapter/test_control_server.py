"""The control socket with real clients: who is served, and what clients cannot do to it."""

import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from fsguard.control import server
from fsguard.control.client import Client
from fsguard.control.protocol import MAX_REQUEST
from fsguard.control.registry import Mount
from fsguard.control.server import Limits, Peer
from fsguard.errors import BusyError, DaemonError, FsguardError, NotMountedError, RefusedError, UsageError

HERE = (os.geteuid(),)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    return str(tmp_path / "run" / "control.sock")


def mount_at(path):
    return Mount("/w", "/w", path, os.getpid(), os.geteuid(), 1)


@asynccontextmanager
async def serving(path, handlers, uids=HERE, **limits):
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: server.serve(
                path, handlers, uids, limits=Limits(**limits), task_status=task_status
            )
        )
        yield
        nursery.cancel_scope.cancel()


async def ask(path, method, /, **params):
    """One call by the real client, in a thread."""

    def call():
        with Client(mount_at(path), timeout=10) as client:
            return client.call(method, **params)

    return await trio.to_thread.run_sync(call)


async def raw(path, data, *, close_write=True):
    """Send bytes, return everything that comes back until the server closes."""
    stream = await trio.open_unix_socket(path)
    async with stream:
        await stream.send_all(data)
        if close_write:
            await stream.send_eof()
        return b"".join([part async for part in stream])


async def echo(peer: Peer, params):
    return params


def run(test, *args):
    async def bounded():
        with trio.fail_after(20):
            await test(*args)

    trio.run(bounded)


def test_a_call_is_answered_and_the_peer_is_what_the_kernel_says(path):
    async def who(peer: Peer, params):
        return [peer.pid, peer.uid, peer.gid, params]

    async def main():
        async with serving(path, {"who": who}):
            name = os.fsdecode(b"caf\xe9\n")
            assert await ask(path, "who", path=name) == [
                os.getpid(),
                os.geteuid(),
                os.getegid(),
                {"path": name},
            ]

    run(main)


def test_one_connection_carries_many_calls(path):
    async def main():
        async with serving(path, {"echo": echo}):

            def calls():
                with Client(mount_at(path)) as client:
                    return [client.call("echo", n=n)["n"] for n in range(200)]

            assert await trio.to_thread.run_sync(calls) == list(range(200))

    run(main)


def test_an_answer_larger_than_any_buffer_arrives(path):
    async def much(peer, params):
        return ["x" * 1000] * 5000

    async def main():
        async with serving(path, {"much": much}):
            assert len(await ask(path, "much")) == 5000

    run(main)


def test_refusals_come_back_as_their_own_class(path):
    async def refuse(peer, params):
        raise NotMountedError("no", "do this")

    async def main():
        async with serving(path, {"refuse": refuse}):
            with pytest.raises(NotMountedError) as caught:
                await ask(path, "refuse")
            assert (caught.value.message, caught.value.hint) == ("no", "do this")
            with pytest.raises(UsageError) as unknown:
                await ask(path, "refuze")
            assert unknown.value.hint == "did you mean refuse?"

    run(main)


def test_a_bug_in_a_handler_is_logged_without_source_lines_and_not_shown(path, caplog):
    async def broken(peer, params):
        raise KeyError("a secret of the daemon")

    async def unsayable(peer, params):
        return {1, 2}

    async def main():
        async with serving(path, {"broken": broken, "unsayable": unsayable, "echo": echo}):
            for method in ("broken", "unsayable"):
                with pytest.raises(FsguardError) as caught:
                    await ask(path, method)
                assert caught.value.message == "internal error in the daemon"
                assert "secret" not in (caught.value.hint or "")
            assert await ask(path, "echo") == {}

    with caplog.at_level(logging.ERROR):
        run(main)
    assert "KeyError" in caplog.text and "test_control_server.py:" in caplog.text
    assert "raise KeyError" not in caplog.text and "Traceback" not in caplog.text
    assert all(record.exc_info is None for record in caplog.records)


def test_a_stream_gives_its_items_as_they_come_then_ends(path):
    async def count(peer, params):
        for n in range(params["to"]):
            yield {"n": n}

    async def awaited(peer, params):
        return count(peer, {"to": 2})

    async def main():
        async with serving(path, {"count": count, "awaited": awaited, "echo": echo}):

            def follow():
                with Client(mount_at(path)) as client:
                    seen = [item["n"] for item in client.stream("count", to=5)]
                    seen += [item["n"] for item in client.stream("awaited")]
                    return seen, client.call("echo", after=1)

            assert await trio.to_thread.run_sync(follow) == ([0, 1, 2, 3, 4, 0, 1], {"after": 1})

    run(main)


def test_an_error_in_a_stream_ends_it_as_an_error(path):
    async def breaks(peer, params):
        yield 1
        raise BusyError("enough")

    async def main():
        async with serving(path, {"breaks": breaks}):

            def follow():
                seen = []
                with pytest.raises(BusyError, match="enough"), Client(mount_at(path)) as client:
                    seen.extend(client.stream("breaks"))
                return seen

            await trio.to_thread.run_sync(follow)

    run(main)


def test_a_stream_is_closed_when_its_reader_goes(path):
    async def main():
        closed = trio.Event()

        async def quiet(peer, params):
            try:
                yield "first"
                await trio.sleep_forever()
            finally:
                closed.set()

        async with serving(path, {"quiet": quiet}):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(b'{"id": 1, "method": "quiet"}\n')
                assert json.loads(await stream.receive_some()) == {"id": 1, "event": "first"}
            await closed.wait()

    run(main)


def test_a_request_sent_during_a_stream_is_answered_after_it(path):
    async def main():
        go = trio.Event()

        async def short(peer, params):
            yield 1
            await go.wait()

        async with serving(path, {"short": short, "echo": echo}), await trio.open_unix_socket(path) as stream:
            await stream.send_all(b'{"id": 1, "method": "short"}\n')
            await stream.receive_some()
            await stream.send_all(b'{"id": 2, "method": "echo"}\n')
            await trio.testing.wait_all_tasks_blocked()
            go.set()
            data = b""
            while data.count(b"\n") < 2:
                data += await stream.receive_some()
            assert [json.loads(line)["id"] for line in data.splitlines()] == [1, 2]

    run(main)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 5000 + b"\n",
        b"[" * 100_000 + b"\n",
        b"{}\n",
        b'{"id": 1, "method": 7}\n',
    ],
)
def test_garbage_is_answered_with_a_sentence_and_the_door(path, garbage):
    async def main():
        async with serving(path, {"echo": echo}):
            answer = json.loads((await raw(path, garbage)).splitlines()[0])
            assert answer["id"] == 0 and answer["error"]["code"] == 2
            assert await ask(path, "echo", still="there") == {"still": "there"}

    run(main)


def test_an_endless_line_is_cut_off(path):
    async def main():
        async with serving(path, {"echo": echo}):
            async with await trio.open_unix_socket(path) as stream:
                with pytest.raises(trio.BrokenResourceError):
                    while True:
                        await stream.send_all(b"x" * MAX_REQUEST)
            assert await ask(path, "echo") == {}

    run(main)


def test_half_a_line_is_dropped_in_time_and_harms_nobody(path):
    async def main():
        async with serving(path, {"echo": echo}, line_seconds=0.2):
            assert await raw(path, b'{"id": 1, "met', close_write=False) == b""
            assert await ask(path, "echo") == {}

    run(main)


def test_half_lines_of_all_clients_have_one_bound(path):
    async def main():
        async with serving(path, {"echo": echo}, pending_bytes=100_000), trio.open_nursery() as nursery:
            ended = []

            async def half():
                ended.append(await raw(path, b"x" * 30_000, close_write=False))

            for _ in range(8):
                nursery.start_soon(half)
            while len(ended) < 5:  # three may stay
                await trio.lowlevel.checkpoint()
            assert await ask(path, "echo") == {}
            nursery.cancel_scope.cancel()

    run(main)


def test_a_reader_that_does_not_read_is_dropped(path):
    async def main():
        async def flood(peer, params):
            try:
                while True:
                    yield "x" * 10_000
            finally:
                dropped.set()

        dropped = trio.Event()
        async with serving(path, {"flood": flood, "echo": echo}, send_seconds=0.2):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(b'{"id": 1, "method": "flood"}\n')
                await dropped.wait()
            assert await ask(path, "echo") == {}

    run(main)


def test_a_crowd_of_idle_clients_does_not_keep_others_out(path):
    async def main():
        async with serving(path, {"echo": echo}, clients=20):
            crowd = [await trio.open_unix_socket(path) for _ in range(300)]
            assert await ask(path, "echo", n=1) == {"n": 1}
            for stream in crowd:
                await stream.aclose()

    run(main)


def test_a_thousand_clients_at_once_are_all_answered(path):
    async def main():
        answers = []

        async def one(n):
            line = b'{"id": %d, "method": "echo"}\n' % n
            answers.append(json.loads(await raw(path, line))["id"])

        async with serving(path, {"echo": echo}), trio.open_nursery() as crowd:
            for n in range(1000):
                crowd.start_soon(one, n)
        assert sorted(answers) == list(range(1000))

    run(main)


CONNECT_AS = """
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
os.setgid(65534); os.setuid(int(sys.argv[2]))
s.connect(sys.argv[1])
try:
    s.sendall(b'{"id": 1, "method": "echo"}\\n')
except BrokenPipeError:
    pass  # refused before a word was said
print(s.makefile().readline())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
@pytest.mark.parametrize(
    ("allowed", "uid", "served"), [([0], 4711, False), ([0, 4711], 4711, True), ([4711], 4712, False)]
)
def test_only_the_named_users_and_root_are_served(path, tmp_path, allowed, uid, served):
    for directory in (os.path.dirname(path), *map(str, tmp_path.parents[:3]), str(tmp_path)):
        os.chmod(directory, 0o755)

    async def main():
        async with serving(path, {"echo": echo}, allowed):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            if not served:
                os.chmod(path, 0o666)  # past the file's own mode, to the server's check
            command = [sys.executable, "-c", CONNECT_AS, path, str(uid)]
            done = await trio.run_process(command, capture_stdout=True)
            answer = json.loads(done.stdout)
            if served:
                assert answer == {"id": 1, "result": {}}
            else:
                assert answer["error"]["code"] == RefusedError.exit_code
            assert await ask(path, "echo") == {}

    run(main)


def test_a_socket_left_by_a_dead_daemon_is_replaced_and_a_living_one_is_not(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)

    async def main():
        async with serving(path, {"echo": echo}):
            assert await ask(path, "echo") == {}
            with pytest.raises(BusyError):
                await server.serve(path, {}, HERE)
        assert not os.path.exists(path)

    run(main)


def test_a_file_in_the_way_is_not_removed(path):
    with open(path, "w") as file:
        file.write("mine")
    with pytest.raises(BusyError):
        trio.run(server.serve, path, {}, HERE)
    assert os.path.exists(path)


def test_a_directory_that_others_can_write_is_no_place(path):
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(RefusedError):
        trio.run(server.serve, path, {}, HERE)


def test_a_path_longer_than_a_socket_address_will_do(tmp_path):
    deep = tmp_path.joinpath(*["d" * 60] * 3)
    deep.mkdir(parents=True)
    path = str(deep / "control.sock")

    async def main():
        async with serving(path, {"echo": echo}):
            assert await ask(path, "echo") == {}
            with pytest.raises(BusyError):
                await server.serve(path, {}, HERE)

    run(main)


def test_no_daemon_is_a_sentence_with_a_hint(path):
    for setting in ("absent", "stale"):
        if setting == "stale":
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(path)
        with pytest.raises(DaemonError) as caught:
            Client(mount_at(path)).call("echo")
        assert "does not answer" in caught.value.message and "fsguard status" in (caught.value.hint or "")


def test_a_silent_daemon_is_given_up(path):
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        with pytest.raises(DaemonError, match="said nothing"), Client(mount_at(path), timeout=0.1) as client:
            client.call("echo")


@pytest.mark.parametrize("said", [b"", b"what?\n", b'{"id": 1', b'{"id": 77, "result": 1}\n'])
def test_nonsense_from_the_daemon_is_a_daemon_error(path, said):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def speak():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(said)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(DaemonError), Client(mount_at(path), timeout=5) as client:
            client.call("echo")
        thread.join()


def test_an_unknown_error_code_is_still_an_error(path):
    async def odd(peer, params):
        error = FsguardError("odd")
        error.exit_code = 99
        raise error

    async def main():
        async with serving(path, {"odd": odd}):
            with pytest.raises(FsguardError, match="odd"):
                await ask(path, "odd")

    run(main)


def test_the_clients_start_without_the_engine():
    program = (
        "import sys, fsguard.control.client, fsguard.control.registry, fsguard.control.protocol\n"
        "heavy = {'trio', 'pyfuse3', 'psutil', 'typing', 'socket', 'dataclasses', 'subprocess', 'inspect'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], check=True, capture_output=True, text=True, cwd=os.getcwd()
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_refusal_given_at_the_door_reaches_the_client(path):
    refusal = b'{"id": 0, "error": {"code": 6, "message": "not you", "hint": null}}\n'
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        client = Client(mount_at(path))
        closed = threading.Event()

        def refuse():
            peer, _ = listener.accept()
            with peer:
                peer.sendall(refusal)
            closed.set()

        thread = threading.Thread(target=refuse)
        thread.start()
        client._connected()
        closed.wait()
        with pytest.raises(RefusedError, match="not you"), client:
            client.call("echo")
        thread.join()
