"""Sessions: a conversation keeps its worker and its computed part until its time is over, and never changes an answer."""
import os, shutil, signal, subprocess, tempfile, time

from broker_pool import BIN, PATIENCE, Pool, run

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")


def a_session_stays_with_its_worker():
    with Pool(workers=3) as pool:
        c = pool.client()
        assert "sessions" in c.ask({"type": "hello"}, "hello")["features"]
        for name in ("a", "b", "c", "d"):
            homes = {c.generate(prompt="%s %d" % (name, i), max_tokens=3, session=name).end["worker"] for i in range(8)}
            assert len(homes) == 1, (name, homes)
        assert pool.status()["pool"]["sessions"] == 4
        home = c.generate(prompt="a", max_tokens=3, session="a").end["worker"]
        os.kill(pool.status()["workers"][home]["pid"], signal.SIGKILL)
        assert c.generate(prompt="a", max_tokens=3, session="a").end["type"] == "done"
        c.send({"type": "session_end", "id": "x", "session": "b"})
        c.send({"type": "session_end", "id": "x", "session": "unknown"})
        pool.wait_for("ended", lambda s: s["pool"]["sessions"] == 3)


def time_ends_a_session():
    with Pool() as pool:
        c = pool.client()
        began = time.time()
        c.generate(prompt="x", max_tokens=3, session="s", session_ttl_ms=700)
        for i in range(4):  # refreshed
            time.sleep(0.4)
            there, since = pool.status()["pool"]["sessions"], time.time() - began
            assert there == 1 or since > 0.69, since  # a slow machine comes too late
            began = time.time()
            c.generate(prompt="x", max_tokens=3, session="s", session_ttl_ms=700)
        pool.wait_for("over", lambda s: s["pool"]["sessions"] == 0)
        assert 0.69 < time.time() - began < 1.6 * PATIENCE, time.time() - began  # the idle broker looks each half second


def the_command_names_one():
    with Pool() as pool:
        r = subprocess.run([os.path.join(BIN, "weir"), "generate", "--session", "s", "--max-tokens", "3", "--connect", pool.endpoint, "x"],
                           capture_output=True, timeout=30)
        assert r.returncode == 0 and pool.status()["pool"]["sessions"] == 1, r


def a_users_own_limit_counts():
    folder = tempfile.mkdtemp(prefix="weir-users-")
    users = os.path.join(folder, "users")
    with open(users, "w") as f:
        os.chmod(users, 0o640)
        f.write("[ann]\nmax-sessions = 2\n[bob]\nmax-sessions = 130\n")
    with Pool(args=["--users-file", users]) as pool:
        c = pool.client()
        for user, n in (("ann", 2), ("bob", 130), ("carol", 128)):
            for i in range(n):
                assert c.generate(prompt="x", max_tokens=1, session="s%d" % i, on_behalf_of=user).end["type"] == "done", (user, i)
            m = c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of=user).end
            assert m["code"] == "limit_exceeded" and "max-sessions allows, %d:" % n in m["message"], m
        # the file is read again: what is open stays, and one more may come or not
        with open(users, "w") as f:
            f.write("[ann]\nmax-sessions = 3\n[bob]\nmax-sessions = 1\n")
        pool.wait_for("reloaded", lambda s: "event=users_reloaded" in pool.log())
        assert c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of="ann").end["type"] == "done"
        assert c.generate(prompt="x", max_tokens=1, session="s7", on_behalf_of="bob").end["type"] == "done"
        assert c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of="bob").end["code"] == "limit_exceeded"
    shutil.rmtree(folder)


def limits_and_owners():
    with Pool() as pool:
        c = pool.client()
        for i in range(128):
            assert c.generate(prompt="x", max_tokens=1, session="s%d" % i, on_behalf_of="ann").end["type"] == "done"
        m = c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of="ann").end
        assert m["code"] == "limit_exceeded" and m["param"] == "session", m
        assert c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of="bob").end["type"] == "done"
        assert c.generate(prompt="x", max_tokens=1, session="s5", on_behalf_of="ann").end["type"] == "done"
        c.send({"type": "session_end", "id": "x", "session": "s7"})  # not ann's: there is none
        c.send({"type": "session_end", "id": "x", "session": "s6", "on_behalf_of": "ann"})
        pool.wait_for("ended", lambda s: s["pool"]["sessions"] == 128)
        assert c.generate(prompt="x", max_tokens=1, session="more", on_behalf_of="ann").end["type"] == "done"
        c.send({"type": "session_end", "id": "bad", "session": "s6", "on_behalf_of": "no such name!"})
        m = c.receive_type("error")
        assert m["code"] == "invalid_parameter" and m["param"] == "on_behalf_of" and m["id"] == "bad", m
        for fields in (dict(session=""), dict(session="x" * 64), dict(session="s", session_ttl_ms=0), dict(session_ttl_ms=5)):
            assert c.generate(prompt="x", **fields).end["type"] == "error", fields
        assert pool.status()["pool"]["sessions"] == 129


def what_is_kept_is_found_again_and_answers_are_the_same():
    if not os.path.exists(MODEL):
        print("  (no model: not tried)")
        return
    text = "The miller of the valley had three sons, and each of them wanted something else of him. " * 6
    other = "A ship that leaves the harbour in winter carries coal, letters, and two or three people who have nowhere else to go. "
    with Pool(models=["m=" + MODEL], real=True, args=["--kv-bytes", "8M", "--host-store-bytes", "0"]) as pool:
        c = pool.client()
        ask = dict(max_tokens=8, temperature=0, ignore_eos=True)
        first = c.generate(prompt=text, session="s", session_ttl_ms=60000, **ask)
        w = pool.wait_for("kept", lambda s: s["workers"][0]["blocks_pinned"] > 0)["workers"][0]
        for i in range(4):  # evicts whatever may be evicted
            c.generate(prompt="%d. " % i + other * 8, **ask)
        again = c.generate(prompt=text, session="s", session_ttl_ms=60000, **ask)
        assert again.ids == first.ids and first.end["usage"]["cached_tokens"] == 0
        assert again.end["usage"]["cached_tokens"] >= first.end["usage"]["prompt_tokens"] - 16, (again.end["usage"], w)
        c.send({"type": "session_end", "id": "x", "session": "s"})
        pool.wait_for("unpinned", lambda s: s["workers"][0]["blocks_pinned"] == 0 and s["pool"]["sessions"] == 0, 2)
        # sessions never stop other work
        for i in range(6):
            assert c.generate(prompt="%d. " % i + text, session="t%d" % i, **ask).end["type"] == "done"
        assert c.generate(prompt=other * 8, cache="off", **ask).end["type"] == "done"
        uncached = c.generate(prompt=text, cache="off", **ask)
        assert uncached.ids == first.ids


def tokens_of(c, text):
    return c.ask({"type": "tokenize", "id": "t", "text": text}, "ids")["ids"]


def a_turn_computes_only_what_is_new():
    """Ten turns; and a turn after an answer whose text has other tokens than the ones that were sampled."""
    if not os.path.exists(MODEL):
        print("  (no model: not tried)")
        return
    with Pool(models=["m=" + MODEL], real=True, args=["--kv-bytes", "64M", "--host-store-bytes", "0"]) as pool:
        c = pool.client()
        chat, before, n_round = [], None, 0
        for k in range(10):
            chat.append({"role": "user", "content": "Mill number %d has %d sacks. What does the miller say?" % (k, 3 * k)})
            a = c.generate(messages=chat, session="s", max_tokens=9, temperature=0)
            u = a.end["usage"]
            if before is not None:
                # The last token of an answer was sampled and not computed: at most that one, and what the template puts there, is new with the turn.
                end = before["prompt_tokens"] + before["completion_tokens"] - 1
                assert u["cached_tokens"] >= end if round_trip else u["cached_tokens"] >= before["prompt_tokens"] - 16, (k, u, before)
            before = u
            text = a.text.get(0, "")
            ids = a.ids[0][:-1] if a.end["choices"][0]["finish_reason"] == "stop" else a.ids[0]
            round_trip = tokens_of(c, text) == ids
            n_round += round_trip
            chat.append({"role": "assistant", "content": text})
        assert n_round >= 8, n_round
        off = c.generate(messages=chat[:-1], cache="off", max_tokens=9, temperature=0)
        assert off.ids == a.ids

        for seed in range(50):
            chat = [{"role": "user", "content": "Say something."}]
            a = c.generate(messages=chat, session="other", max_tokens=10, temperature=3.0, seed=seed)
            text = a.text.get(0, "")
            ids = tokens_of(c, text)
            if ids != a.ids[0][:len(ids)]:
                break
        else:
            raise AssertionError("every answer round-trips")
        chat += [{"role": "assistant", "content": text}, {"role": "user", "content": "What did you say?"}]
        again = c.generate(messages=chat, session="other", max_tokens=10, temperature=0)
        off = c.generate(messages=chat, cache="off", max_tokens=10, temperature=0)
        assert again.ids == off.ids and off.end["usage"]["cached_tokens"] == 0 < again.end["usage"]["cached_tokens"]


def the_chat_command_uses_one_and_ends_it():
    with Pool() as pool:
        p = subprocess.Popen([os.path.join(BIN, "weir"), "chat", "--max-tokens", "3", "--connect", pool.endpoint], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, text=True)
        p.stdin.write("one\ntwo\n")
        p.stdin.flush()
        pool.wait_for("two turns", lambda s: s["totals"]["done"] == 2 and s["pool"]["sessions"] == 1)
        p.stdin.write("/reset\nthree\n")
        p.stdin.flush()
        pool.wait_for("another", lambda s: s["totals"]["done"] == 3 and s["pool"]["sessions"] == 1)
        p.stdin.close()
        assert p.wait(30) == 0
        pool.wait_for("ended", lambda s: s["pool"]["sessions"] == 0)


if __name__ == "__main__":
    run([a_turn_computes_only_what_is_new, the_chat_command_uses_one_and_ends_it, a_session_stays_with_its_worker, time_ends_a_session, the_command_names_one, limits_and_owners, a_users_own_limit_counts,
         what_is_kept_is_found_again_and_answers_are_the_same])
