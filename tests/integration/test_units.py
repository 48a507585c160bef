"""systemd's side: readiness, watchdog and the end are told; the units are closed; what is packed runs from where it is unpacked."""
import glob, os, re, shutil, signal, socket, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serve_rig import BIN, ROOT, TINY, main


def messages(s, seconds, wanted):
    """What came, until `wanted` did."""
    end, got = time.time() + seconds, []
    s.settimeout(0.2)
    while wanted not in got and time.time() < end:
        try:
            got += s.recv(4096).decode().split("\n")
        except TimeoutError:
            pass
    assert wanted in got, (wanted, got)
    return got


def silent(s, seconds):
    """Until nothing has come for two seconds."""
    end, since = time.time() + seconds, time.time()
    s.settimeout(0.2)
    while time.time() - since < 2:
        assert time.time() < end, "never silent"
        try:
            s.recv(4096)
            since = time.time()
        except TimeoutError:
            pass


def systemd_is_told():
    with tempfile.TemporaryDirectory(prefix="weir-units-") as here, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(here + "/notify")
        env = {**os.environ, "NOTIFY_SOCKET": here + "/notify", "WATCHDOG_USEC": "400000"}
        broker = subprocess.Popen([BIN + "/weir-broker", "--model", "tiny=" + TINY, "--threads", "1", "--kv-bytes", "4M", "--host-store-bytes",
                                   "0", "--runtime-dir", here + "/run"], env=env, stderr=subprocess.DEVNULL)
        messages(s, 60, "READY=1")
        for _ in range(3):
            messages(s, 5, "WATCHDOG=1")
        broker.terminate()
        messages(s, 10, "STOPPING=1")
        assert broker.wait(30) == 0
        gateway = subprocess.Popen([BIN + "/weir-gateway", "--ssh-port", "0", "--listen", "127.0.0.1", "--runtime-dir", here + "/run",
                                    "--state-dir", here + "/state"], env=env, stderr=subprocess.DEVNULL)
        messages(s, 60, "READY=1")
        for _ in range(3):
            messages(s, 5, "WATCHDOG=1")
        # A jobs process that stands still: the gateway stops telling, so systemd would start it anew.
        jobs = int(subprocess.run(["pgrep", "-P", str(gateway.pid), "-f", "jobs-process"], capture_output=True, text=True).stdout.split()[0])
        os.kill(jobs, signal.SIGSTOP)
        silent(s, 60)
        os.kill(jobs, signal.SIGCONT)
        messages(s, 30, "WATCHDOG=1")
        gateway.terminate()
        messages(s, 10, "STOPPING=1")
        assert gateway.wait(30) == 0


def units_are_closed():
    if not shutil.which("systemd-analyze"):
        print("  (no systemd-analyze: not tried)")
        return
    for unit in glob.glob(ROOT + "/docker/systemd/*.service"):
        r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=25", unit], capture_output=True, text=True)
        exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", r.stdout)
        if not exposure:
            print("  (systemd-analyze cannot: not tried)")
            return
        assert r.returncode == 0 and float(exposure[1]) <= 2.5, r.stdout[-500:]
        with open(unit) as f:
            program = re.search(r"^ExecStart=(\S+)", f.read(), re.M)[1]
        assert os.path.exists(BIN + "/" + os.path.basename(program)), program


def options_of_the_units_are_known():
    """Every --option of the units and every key of the sample configuration is one that the program has."""
    helps = {p: subprocess.run([BIN + "/weir-" + p, "--help"], capture_output=True, text=True).stdout for p in ("broker", "worker", "gateway")}
    for p in ("broker", "gateway"):
        with open(ROOT + "/docker/systemd/weir-%s.service" % p) as f:
            for option in re.findall(r" (--[a-z-]+)", re.search(r"^ExecStart=.*", f.read(), re.M)[0]):
                assert option + " " in helps[p], option
    section = None
    with open(ROOT + "/docker/systemd/weir.conf") as f:
        for line in f:
            if m := re.match(r"\[(\w+)\]", line):
                section = m[1]
            elif m := re.match(r"(?:# )?([a-z-]+) = ", line):
                assert any("--" + m[1] + " " in helps[p] for p in (helps if section == "weir" else [section])), (section, m[1])


def a_tarball_runs_from_where_it_is_unpacked():
    with tempfile.TemporaryDirectory(prefix="weir-dist-") as here:
        stage = subprocess.run([ROOT + "/tools/stage.sh", os.path.relpath(os.path.dirname(BIN), ROOT), here + "/a", ""],
                               env={**os.environ, "CUDA": "0"}, capture_output=True, text=True)
        assert stage.returncode == 0, stage.stderr
        os.rename(here + "/a", here + "/some where else")
        r = subprocess.run([here + "/some where else/bin/weir", "serve", "--help"], capture_output=True, text=True)
        assert r.returncode == 0 and "--model" in r.stdout
        for name in ("share/doc/weir/operations.md", "share/doc/weir/examples/prometheus/rules.yml", "share/doc/weir/examples/grafana/dashboard.json"):
            assert os.path.exists(here + "/some where else/" + name), name


if __name__ == "__main__":
    main([systemd_is_told, units_are_closed, options_of_the_units_are_known, a_tarball_runs_from_where_it_is_unpacked], sys.argv[1:])
