"""A canary per user: with real workers and their store, blocks changing owners all the time, nothing of one user's prompt shows up at another.

usage: test_canary.py [REQUESTS [SEED]]      60 requests by default; 1,000 in the longer proofs

Several users ask, many at a time, questions that begin alike and then tell a secret of that user and ask for it.  Two workers have room for a
fraction of the prompts, and so has their store.  Of every answer: no secret of another user is in its tokens or its text, and no more of its prompt came
from the cache than an earlier request of the same user had in common with it.  Questions without a secret have the same answer whoever asks.

Of every timeline: its chunks and what it says of the cache make up the prompt, and it waited for a prefix only beside a request of the same user with
the same beginning.  In the end one of the users, by a uid of its own, reads all there is to read: nothing in it is of anybody else."""
import json, os, random, shutil, subprocess, sys, tempfile

from broker_pool import BIN, Pool

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")
BLOCK_BYTES, BLOCK, AT_ONCE, SECRETS, BOB_UID = 368640, 16, 8, 3, 65534
USERS = ["ann", "bob", "eve"]
WORDS = {"ann": "amber birch cedar delta ember fjord grove heron", "bob": "inlet jetty knoll larch maple north otter plume",
         "eve": "quartz ridge spruce thorn urchin violet willow yarrow"}
DOCUMENTS = ["The mill of %s grinds rye, oats and barley. " % name + " ".join(
    "Sack %d goes to house %d by the river, and the miller notes it in his book." % (i, i * 7 % 31) for i in range(6))
    for name in ("Alder", "Brook", "Crane")]


class Canary:
    def __init__(self, client, seed):
        self.c, self.rng = client, random.Random(seed)
        self.documents = [self.ids(d) for d in DOCUMENTS]
        self.question = self.ids(" The secret word is")
        self.secrets = {}  # user: [(text, ids)]
        for user in USERS:
            self.secrets[user] = []
            for _ in range(SECRETS):
                text = " " + " ".join(self.rng.sample(WORDS[user].split(), 5))
                self.secrets[user].append((text, self.ids(text)))
        self.known = {user: [] for user in USERS}  # what requests of a user were sent, or are behind by now
        self.plain = {}
        self.asked = {}
        self.company = {}  # request under way: others that were, at some time of its life
        self.names = {user: [] for user in USERS}
        self.sums = {user: [0, 0, 0] for user in USERS}  # prompt, cached and completion tokens
        self.n_cached = self.n_told = self.n_waited = 0

    def ids(self, text):
        return self.c.ask({"type": "tokenize", "id": "t", "text": text}, "ids", 120)["ids"]

    def ask(self, k):
        user = self.rng.choice(USERS)
        document = self.rng.randrange(len(self.documents))
        secret = self.rng.choice(self.secrets[user]) if self.rng.random() < 0.7 else None
        prompt = self.documents[document][:]
        if secret:
            prompt += self.question + secret[1]
        prompt += self.question
        self.known[user].append(prompt)
        head = (user, tuple(prompt[:BLOCK]))
        self.company[k] = (head, [h for h, _ in self.company.values()])
        for h, others in self.company.values():
            if h is not head:
                others.append(head)
        self.asked[k] = (user, document if secret is None else None, prompt, secret)
        self.c.send({"type": "generate", "id": k, "prompt_ids": prompt, "max_tokens": 8, "temperature": 0, "on_behalf_of": user,
                     **({"session": "s%d" % self.rng.randrange(3)} if self.rng.random() < 0.3 else {})})

    def check(self, k, ids, text, end):
        user, plain, prompt, secret = self.asked.pop(k)
        assert end["type"] == "done", end
        for other in USERS:
            for secret_text, secret_ids in self.secrets[other] if other != user else []:
                for i in range(len(ids) - 2):  # three tokens of it are no chance
                    assert ids[i:i + 3] not in [secret_ids[j:j + 3] for j in range(len(secret_ids) - 2)], (user, other, text)
                assert secret_text.strip() not in text, (user, other, text)
        cached = end["usage"]["cached_tokens"]
        best = max([common(prompt, p) for p in self.known[user] if p is not prompt] or [0])
        assert cached <= min(best, len(prompt) - 1), "%s: %d tokens came from the cache, its own requests had %d" % (user, cached, best)
        if plain is not None:
            assert self.plain.setdefault(plain, ids) == ids, "another answer to the same question"
        self.known[user].append(prompt + ids)
        self.sums[user] = [a + end["usage"][b] for a, b in zip(self.sums[user], ("prompt_tokens", "cached_tokens", "completion_tokens"))]
        self.n_cached += cached
        self.n_told += secret is not None and ids[:3] == secret[1][:3]

    def check_timeline(self, k, name, end, timeline):
        """The timeline as an administrator reads it: the same as its user does."""
        user, usage = timeline["user"], end["usage"]
        self.names[user].append(name)
        head, others = self.company.pop(k)
        assert timeline["request"] == name and user == head[0], timeline
        assert timeline["cached_tokens"] == usage["cached_tokens"] and timeline["prompt_tokens"] == usage["prompt_tokens"], (timeline, usage)
        if timeline["preemptions"] == timeline["takeovers"] == 0:
            rows = sum(chunk["rows"] for chunk in timeline["chunks"])
            assert rows + usage["cached_tokens"] == usage["prompt_tokens"], timeline
        waited = any(phase["name"] == "prefix" for phase in timeline["phases"])
        assert not waited or head in others, "%s waited for a prefix that none of its own requests was computing" % name
        self.n_waited += waited

    def check_what_bob_reads(self, pool):
        """`weir status`, `weir trace` as another uid.  Only root can become one."""
        if os.getuid() != 0:
            return "not tried"
        weir = os.path.join(pool.dir, "weir")
        shutil.copy(os.path.join(BIN, "weir"), weir)
        for path, mode in ((pool.dir, 0o755), (pool.dir + "/run", 0o755), (pool.endpoint[6:], 0o666)):
            os.chmod(path, mode)

        def read(*words):
            return subprocess.run([weir, "--connect", pool.endpoint, *words], user=BOB_UID, group=BOB_UID, extra_groups=[], cwd="/", env={},
                                  capture_output=True, text=True, timeout=120)
        status, traces = read("status", "--json"), read("trace", "--json")
        assert status.returncode == traces.returncode == 0, (status, traces)
        users = json.loads(status.stdout)["users"]
        assert [u["name"] for u in users] == ["bob"], users
        assert [users[0][key] for key in ("prompt_tokens", "cached_tokens", "completion_tokens")] == self.sums["bob"], (users, self.sums)
        listed = json.loads(traces.stdout)["requests"]
        assert {r["user"] for r in listed} == {"bob"} and {r["request"] for r in listed} <= set(self.names["bob"]), listed
        words = set((read("status").stdout + read("trace").stdout).replace(",", " ").split())
        for other in USERS:
            assert (other == "bob") == (read("trace", self.names[other][-1]).returncode == 0), other
            assert other == "bob" or not words & {other, *self.names[other]}, words & {other, *self.names[other]}
        return "nothing of others"


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10 ** 6)
    print("seed %d" % seed, flush=True)
    with tempfile.TemporaryDirectory(prefix="weir-canary-") as folder:
        users = os.path.join(folder, "users")
        with open(users, "w", encoding="utf-8") as f:
            f.write("[bob]\nuid = %d\n[ann]\n[eve]\n" % BOB_UID)
        with Pool(workers=2, models=["m=" + MODEL], real=True, args=[
                "--host-store-bytes", "24M", "--kv-bytes", str(48 * BLOCK_BYTES), "--users-file", users]) as pool:
            canary = Canary(pool.client(), seed)
            ask_all(pool, canary, n)
            w = pool.status()["workers"]
            bob = canary.check_what_bob_reads(pool) if n >= 60 else "not tried"
    evictions, read = sum(x["evictions"] for x in w), sum(x["store_hits"] + x["store_hits_other"] for x in w)
    assert canary.n_cached > 0 and canary.n_told > 0, (canary.n_cached, canary.n_told)
    assert n < 60 or evictions > 0, w
    print("ok %d requests, %d tokens from the cache, %d secrets told to their owner, %d evictions, %d blocks from the store, %d waits for a prefix, "
          "another uid reads: %s" % (n, canary.n_cached, canary.n_told, evictions, read, canary.n_waited, bob))


def ask_all(pool, canary, n):
    reader = pool.client()
    names, answers, n_asked, n_done = {}, {}, 0, 0
    while n_done < n:
        while n_asked < n and n_asked - n_done < AT_ONCE:
            answers[str(n_asked)] = ([], [])
            canary.ask(str(n_asked))
            n_asked += 1
        m = canary.c.receive(120)
        if m["type"] == "accepted":
            names[m["id"]] = m["request"]
        elif m["type"] == "token":
            answers[m["id"]][0].extend(m["ids"])
            answers[m["id"]][1].append(m["text"])
        elif m["type"] in ("done", "error"):
            ids, text = answers.pop(m["id"])
            canary.check(m["id"], ids, "".join(text), m)
            timeline = reader.ask({"type": "trace", "id": "t", "request": names[m["id"]]}, "trace", 120)["requests"][0]
            canary.check_timeline(m["id"], names.pop(m["id"]), m, timeline)
            n_done += 1


if __name__ == "__main__":
    if not os.path.exists(MODEL):
        print("no model at " + MODEL)
        sys.exit(77)
    main()
