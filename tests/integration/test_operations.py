"""What the keeper of the box meets: folders as they type them, a status that fits their terminal, files where they belong."""
import fcntl, json, os, pty, re, shutil, sqlite3, struct, subprocess, sys, tempfile, termios, time
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serve_rig import ROOT, WEIR, Serve, main, wait_until

MODEL = os.environ.get("WEIR_TEST_MODEL") or os.path.expanduser("~/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf")


def relative_folders_are_taken_from_where_one_stands():
    with tempfile.TemporaryDirectory(prefix="weir-rel-") as here:
        with Serve(dirs=("./state", "run"), cwd=here, metrics=False) as pool:
            assert pool.facts["endpoint"] == "ipc://%s/run/broker.sock" % here, pool.facts
            assert os.path.exists(here + "/state/jobs.db")
            pool.weir("status", "--wait-ready", "20")
            pool.add_user("ann")
            assert pool.ssh("ann", "whoami").stdout.startswith("ann")


def on_terminal(pool, columns, *args):
    """What a command shows on a terminal of so many columns, as lines."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execve(WEIR, [WEIR, *args], {**pool.env, "TERM": "xterm"})
    out = b""
    try:
        while part := os.read(fd, 4096):
            out += part
    except OSError:
        pass
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, out
    return out.decode().replace("\r", "").splitlines()


def status_fits_the_terminal_and_is_a_line_a_worker_in_a_pipe():
    name = "a-model-with-quite-a-long-name-of-its-own-Q8_0"
    with Serve(model=name + "=" + ROOT + "/tests/reference/data/tiny/tiny-llama-Q8_0.gguf", workers=2, metrics=False) as pool:
        wait_until(lambda: sum(w["state"] == "ready" for w in json.loads(pool.weir("worker", "list", "--json").stdout)) == 2, 60, "both workers ready")
        pool.weir("generate", "--max-tokens", "2", "a b c")
        for columns in (60, 80, 132):
            lines = on_terminal(pool, columns, "status")
            assert max(map(len, lines)) <= columns, lines
            assert sum(name in line for line in lines) == 2, lines
        lines = pool.weir("status").stdout.splitlines()
        assert [("ready" in line and name in line) for line in lines].count(True) == 2, lines


def numbers_in_json_read_well():
    with Serve(metrics=False) as pool:
        pool.add_user("ann")
        pool.ssh("ann", "submit", "--name", "j", input='{"prompt": "a", "max_tokens": 1}\n')
        pool.ssh("ann", "wait", "j")
        text = pool.ssh("ann", "status", "j", "--json").stdout
        assert json.loads(text)["elapsed_s"] >= 0
        assert all(len(word.split(".")[1].rstrip("}],")) <= 9 for word in text.split(",") if "." in word.split(":")[-1][:12]
                   and "_s" in word), text


def a_job_without_a_worker_says_what_it_waits_for():
    with Serve(metrics=False) as pool:
        pool.add_user("ann")
        pool.weir("worker", "drain", "0", "--wait")
        pool.ssh("ann", "submit", "--name", "j", input='{"prompt": "a", "max_tokens": 1}\n' * 3)

        def status():
            return json.loads(pool.ssh("ann", "status", "j", "--json").stdout)
        note = wait_until(lambda: status()["note"], 30, "a note")
        assert note == "tiny waits for worker 0, which is drained: weir worker resume 0" and status()["eta_s"] is None, note
        assert note in pool.ssh("ann", "status", "j").stdout
        pool.weir("worker", "resume", "0")
        pool.ssh("ann", "wait", "j")
        assert status()["note"] is None and status()["request_counts"]["completed"] == 3


def one_file_configures_every_process():
    with tempfile.TemporaryDirectory(prefix="weir-conf-") as here:
        with open(here + "/weir.conf", "w") as f:
            f.write("[weir]\nlog-level = info\n[serve]\nmetrics-port = 0\n[broker]\ndrain-seconds = 7s\n[worker]\ncontext = 512\n"
                    "[gateway]\njob-window = 5\n")
        bad = subprocess.run([WEIR, "serve", "--config", here + "/weir.conf"], capture_output=True, text=True)
        assert bad.returncode == 2 and "metrics-port" in bad.stderr, bad  # 0 is not in its range: the file is read, and the line named
        with open(here + "/weir.conf") as f:
            text = f.read().replace("metrics-port = 0", "workers = 1")
        with open(here + "/weir.conf", "w") as f:
            f.write(text)
        with Serve(metrics=False, args=["--config", here + "/weir.conf"]) as pool:
            model = json.loads(pool.weir("models", "--json").stdout)["models"][0]
            assert model["context_tokens"] == 512, model


def a_backup_while_it_runs_is_a_whole_state():
    """As docs/operations.md says: the database by SQLite's backup, then the files."""
    with tempfile.TemporaryDirectory(prefix="weir-backup-") as backup, Serve(metrics=False) as pool:
        pool.add_user("ann")
        lines = "".join('{"prompt": "line %d", "max_tokens": 3, "ignore_eos": true}\n' % i for i in range(20))
        pool.ssh("ann", "submit", "--name", "done", input=lines)
        pool.ssh("ann", "wait", "done")
        wanted = pool.ssh("ann", "results", "done", "--ordered").stdout
        long = "".join('{"prompt": "line %d", "max_tokens": 400, "ignore_eos": true}\n' % i for i in range(40))
        pool.ssh("ann", "submit", "--name", "half", input=long)
        time.sleep(0.5)
        db, copy = sqlite3.connect(pool.state + "/jobs.db"), sqlite3.connect(backup + "/jobs.db")
        db.backup(copy)
        db.close()
        copy.close()
        for name in os.listdir(pool.state):
            if not name.startswith("jobs.db") and name != "spool":
                subprocess.run(["cp", "-a", pool.state + "/" + name, backup], check=True)
        pool.stop()
        subprocess.run("rm -rf %s && cp -a %s %s && chmod 750 %s" % (pool.state, backup, pool.state, pool.state), shell=True, check=True)
        pool.start()
        assert pool.ssh("ann", "results", "done", "--ordered").stdout == wanted
        pool.ssh("ann", "wait", "half")
        assert pool.ssh("ann", "results", "half").stdout.count("\n") == 40  # (splitlines() knows other ends, which an answer may hold)


def manual_pages_say_what_the_programs_say():
    with tempfile.TemporaryDirectory(prefix="weir-man-") as here:
        bin = os.path.dirname(WEIR)
        subprocess.run([sys.executable, ROOT + "/tools/man.py", bin, here], check=True)
        for program in ("broker", "worker", "gateway"):
            said = subprocess.run([bin + "/weir-" + program, "--help"], capture_output=True, text=True).stdout
            with open(here + "/weir-%s.8" % program) as f:
                page = f.read().replace("\\-", "-")
            flags = re.findall(r"^ +(?:-\w, )?(--[a-z\[][a-z\[\]-]+)", said, re.M)
            assert len(flags) > 10 and all(flag in page for flag in flags), program
        with open(here + "/weir.1") as f:
            page = f.read()
        assert all(".SH WEIR " + verb in page for verb in ("GENERATE", "BATCH", "STATUS", "TOP", "SERVE"))
        if shutil.which("man"):
            for name in os.listdir(here):
                r = subprocess.run(["man", "--warnings", "-l", here + "/" + name], capture_output=True, text=True, env={**os.environ, "MANPAGER": "cat"})
                assert r.returncode == 0 and r.stderr == "" and len(r.stdout) > 500, r.stderr


def what_operations_md_works_out_is_what_plan_says():
    """The table of the two models: the small one by --plan itself, both by the formula."""
    with open(ROOT + "/docs/operations.md") as f:
        rows = {r[0].strip(): [c.strip() for c in r[1:]] for r in (line.strip().strip("|").split("|") for line in f if line.startswith("| "))}
    number = lambda text: int(re.findall(r"= ([0-9,]+)(?: \(|$)", text)[-1].replace(",", "") if "=" in text else text.replace(",", ""))
    small, large = zip(*([row for row in rows[name]] for name in ("layers, KV heads, head dimension", "tensors", "vocabulary", "weights", "block, f16", "block, q8")))
    for model in (small, large):
        layers, heads, dim = (int(n) for n in model[0].split(","))
        assert number(model[3]) == number(model[1]) + 8 * dim + 4 * number(model[2]) // 16, model
        assert number(model[4]) == layers * heads * 2 * dim * 16 * 2, model
        assert number(model[5]) == layers * heads * (2 * dim * 16 + 2 * (dim // 32) * 16 * 2), model
    if not os.path.exists(MODEL):
        print("  (no model: not compared with --plan)")
        return
    for kv_type, block in (("f16", 4), ("q8", 5)):
        said = subprocess.run([os.path.dirname(WEIR) + "/weir-worker", "--plan", "--device", "cpu", "--kv-bytes", "1G", "--kv-type", kv_type, "--model", MODEL],
                              capture_output=True, text=True, check=True).stdout
        assert re.search(r"^weights +%d bytes" % number(small[3]), said, re.M), said
        assert re.search(r"^kv .* blocks of %d bytes" % number(small[block]), said, re.M), said


def an_array_of_tasks_answers_each_line_once():
    """The Slurm script as Slurm would start it, one task after the other; the second is killed once and started again."""
    with tempfile.TemporaryDirectory(prefix="weir-slurm-") as here:
        tiny = ROOT + "/tests/reference/data/tiny/tiny-llama-Q8_0.gguf"
        with open(here + "/in.jsonl", "w") as f:
            f.writelines(json.dumps({"id": "q%d" % i, "prompt": "line %d" % i, "max_tokens": 5}) + "\n" for i in range(11))
            f.write('{"id": "bad", "prompt": 3}\n')
        env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        env.update({"PATH": os.path.dirname(WEIR) + ":" + env["PATH"], "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"})
        command = ["bash", ROOT + "/docker/slurm/weir-array.sbatch", here + "/in.jsonl", here + "/out", tiny, "--threads", "1", "--kv-bytes", "4M"]
        codes = []
        for task in "123":
            if task == "2":
                killed = subprocess.Popen(command, env={**env, "SLURM_ARRAY_TASK_ID": task}, stderr=subprocess.DEVNULL)
                time.sleep(0.5)
                killed.terminate()
                killed.wait(60)
                assert subprocess.run([ROOT + "/docker/slurm/weir-join", here + "/out"], capture_output=True).returncode == 1
            r = subprocess.run(command, env={**env, "SLURM_ARRAY_TASK_ID": task}, capture_output=True, text=True, timeout=120)
            codes.append(r.returncode)
        assert sorted(codes) == [0, 0, 1], codes
        r = subprocess.run([ROOT + "/docker/slurm/weir-join", here + "/out"], capture_output=True, text=True)
        assert r.returncode == 0
        assert sorted(json.loads(line)["custom_id"] for line in r.stdout.split("\n")[:-1]) == sorted("q%d" % i for i in range(11))
        with open(here + "/out/errors.jsonl") as f:
            assert [json.loads(line)["custom_id"] for line in f] == ["bad"]


def install_puts_everything_in_place():
    with tempfile.TemporaryDirectory(prefix="weir-install-") as root:
        bin = os.path.dirname(WEIR)
        cuda = os.path.exists(bin + "/libweir_cuda.so")
        subprocess.run(["make", "-s", "-C", ROOT, "install", "CUDA=%d" % cuda, "DESTDIR=" + root, "PREFIX=/usr", "B=" + os.path.relpath(os.path.dirname(bin), ROOT)], check=True, stdout=subprocess.DEVNULL)
        for name in ("bin/weir", "bin/weir-broker", "bin/weir-worker", "bin/weir-gateway", "include/weir.h", "lib/libweir.a",
                     "share/bash-completion/completions/weir", "share/man/man1/weir.1", "share/man/man8/weir-broker.8"):
            assert os.path.exists(root + "/usr/" + name), name
        assert cuda == os.path.exists(root + "/usr/bin/libweir_cuda.so")
        def completed(*words):
            script = ('PATH=%s/usr/bin:$PATH; . %s/usr/share/bash-completion/completions/weir; COMP_WORDS=(weir "$@"); COMP_CWORD=$#; '
                      '_weir; echo "${COMPREPLY[@]}"' % (root, root))
            return subprocess.run(["bash", "-c", script, "-", *words], capture_output=True, text=True).stdout.split()
        assert completed("sta") == ["status"] and completed("generate", "--temp") == ["--temperature"] and completed("generate", "--scope", "p") == ["pool"]
        assert completed("subm") == ["submit"] and "results" in completed("help", "res") and completed("stat") == ["status"]
        os.makedirs(root + "/bin")
        with open(root + "/bin/ssh", "w") as f:
            f.write("#!/bin/sh\n>%s/connected\n" % root)
        os.chmod(root + "/bin/ssh", 0o755)
        with mock.patch.dict(os.environ, PATH=root + "/bin:" + os.environ["PATH"]):
            assert completed("submit", "--") == []
        assert not os.path.exists(root + "/connected"), "a key pressed is no reason to connect"
        shutil.rmtree(root + "/bin")
        symbols = subprocess.run(["nm", "--defined-only", root + "/usr/lib/libweir.a"], capture_output=True, text=True, check=True).stdout
        for header in ("weir.h", "weir_batch.h"):
            with open(root + "/usr/include/" + header) as f:
                declared = set(re.findall(r"^[a-z].*?\b(weir_\w+)\([^)]", f.read(), re.M)) - {"weir_callback"}
            assert len(declared) > 5 and not [name for name in declared if " T %s\n" % name not in symbols], (header, declared)
        for verb in ("user", "worker", "key"):  # the words of the help, neither more nor fewer
            said = subprocess.run([root + "/usr/bin/weir", "help", verb], capture_output=True, text=True).stdout.split("\n\n")[0]
            said = " ".join(re.findall(r"^(?:usage:|      ) (weir.*)", said, re.M))
            words = re.findall(r"(?:weir(?:-gateway)? %s |\| (?!--))([a-z|]+)" % verb, said)
            words = {w for word in words for w in word.split("|")}
            assert words and set(completed(verb, "")) == words, (verb, completed(verb, ""), words)
        # and taken away again
        subprocess.run(["make", "-s", "-C", ROOT, "uninstall", "CUDA=0", "DESTDIR=" + root, "PREFIX=/usr"], check=True, stdout=subprocess.DEVNULL)
        left = [os.path.join(folder, f) for folder, _, files in os.walk(root) for f in files]
        assert left == [], left


if __name__ == "__main__":
    main([relative_folders_are_taken_from_where_one_stands, status_fits_the_terminal_and_is_a_line_a_worker_in_a_pipe,
          numbers_in_json_read_well, a_job_without_a_worker_says_what_it_waits_for, one_file_configures_every_process,
          a_backup_while_it_runs_is_a_whole_state, manual_pages_say_what_the_programs_say, what_operations_md_works_out_is_what_plan_says,
          an_array_of_tasks_answers_each_line_once, install_puts_everything_in_place], sys.argv[1:])
