#!/bin/bash
# The longer proofs: sanitizer builds, the second compiler, another architecture, fuzzing.  Each part has a budget in seconds, in
# tests/budgets; a part over its budget fails like a part that finds something.
#
# usage: long.sh [PART...]      the usual parts without arguments.  Run by `make test-long`, which has installed what is needed.
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 known=" "
jobs=$(nproc)

part() {  # part NAME FUNCTION
    local name=$1 budget
    known+="$name "
    case " ${wanted:-$usual} " in *" $name "*) ;; *) return ;; esac
    budget=$(sed -n "s/^$name  *\([0-9]*\)$/\1/p" "${BUDGETS:-tests/budgets}")
    [ -n "$budget" ] || { failed=$((failed + 1)); echo "FAIL  $name (it has no budget)"; return; }
    budget=$((budget * ${BUDGET_FACTOR:-1}))
    local began=$SECONDS log=build/long/$name.log
    mkdir -p build/long
    timeout -k 10 "$budget" bash -c "$2" >"$log" 2>&1
    local rc=$?
    if [ $rc -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok    $name ($((SECONDS - began)) s of $budget)"
    else
        failed=$((failed + 1))
        [ $rc -eq 124 ] || [ $rc -eq 137 ] && echo "over its budget" >>"$log"
        echo "FAIL  $name ($((SECONDS - began)) s of $budget)"
        tail -n 60 "$log" | sed 's/^/    /'
    fi
}

# The unit tests, and those of whole pools and of the real ssh client, built with sanitizers.
sanitized() {
    make -j"$jobs" SAN=address,undefined WERROR=1 all tests &&
        ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
        WEIR_SANITIZED=1 TEST_TIMEOUT_S=900 tests/all.sh build/address,undefined tests/integration/test_broker*.py
}

# Ring and doorbell between threads of one process: the thread sanitizer sees no race between processes.
threads() {
    make -j"$jobs" SAN=thread B=build/thread build/thread/tests/unit/test_ring build/thread/tests/unit/test_doorbell &&
        tests/run.sh build/thread/log build/thread/tests/unit/test_ring build/thread/tests/unit/test_doorbell
}

second_compiler() {
    make -j"$jobs" CC=clang B=build/clang CUDA=0 WERROR=1 all plain-tests && tests/all.sh build/clang plain
}

# The host store: more lives of a writer that is killed, more seeds of two workers.
host_store() {
    make -j"$jobs" build/tests/unit/test_host_store build/tests/unit/test_host_store_faults build/tests/unit/test_block_mover &&
        build/tests/unit/test_host_store_faults --seed 2 --ops 10000 && build/tests/unit/test_host_store --seed 2 --ops 5000000 || return
    for seed in $(seq 2 60); do build/tests/unit/test_block_mover --seed "$seed" || return; done
}

# The structures of cache, scheduler and queue against their stupid oracles, as long as one has patience for.
oracles() {
    local n=${ORACLE_FACTOR:-1} t=build/tests/unit
    make -j"$jobs" $t/test_kv_cache $t/test_prefix_index $t/test_fair_queue $t/test_scheduler $t/test_sessions $t/test_router &&
        $t/test_kv_cache --seed 2 --ops $((n * 500000)) && $t/test_prefix_index --seed 2 --ops $((n * 200000)) &&
        $t/test_fair_queue --seed 2 --ops $((n * 200000)) && $t/test_scheduler --seed 2 --ops $((n * 150)) &&
        $t/test_sessions --seed 2 --ops $((n * 200000)) && $t/test_router --seed 2 --ops $((n * 20000))
}

# Whose tokens are whose, with real workers (the simulator has the same with a hundred times as many requests).
canary() {
    make -j"$jobs" WERROR=1 all && /usr/bin/python3 tests/integration/test_canary.py "${CANARY_REQUESTS:-200}" || [ $? -eq 77 ]
}

fuzz() {
    if [ -n "$FUZZ_EACH" ]; then tests/fuzz/run.sh each "$FUZZ_EACH"; else tests/fuzz/run.sh 200; fi
}

simulator() {
    make -j"$jobs" WERROR=1 build/tests/sim/sim && tests/sim/run "${SIM_RUN:-long}"
}

# A real Prometheus scrapes a pool.
services() {
    make -j"$jobs" all build/tests/nvml/libnvidia-ml.so.1 && { /usr/bin/python3 tests/integration/services.py || [ $? -eq 77 ]; }
}

# Clients of every kind and workers that are killed: nothing lost, doubled or wrong, nothing grows.
soak() {
    make -j"$jobs" WERROR=1 all && /usr/bin/python3 tests/soak.py "${SOAK_MINUTES:-1}" "${SOAK_SEED:-1}"
}

# Every system call and allocation on the path of a request fails once; every named point of failure is come by.  TORTURE_SECONDS: as
# many of each as fit (90); "all": all of them.
torture() {
    local limit=(--seconds "${TORTURE_SECONDS:-90}" --seed "${SIM_SEED:-1}")
    [ "${TORTURE_SECONDS:-}" = all ] && limit=()
    make -j"$jobs" WERROR=1 all tests build/tests/torture/shim.so && make -j"$jobs" CUDA=0 WERROR=1 FAULTS=1 B=build/faults all &&
        /usr/bin/python3 tests/torture/torture.py "${limit[@]}" && /usr/bin/python3 tests/torture/faults.py "${limit[@]}"
}

# Every process killed in every state of a job, and a full disk: then the lines are counted.
jobs_killed() {
    make -j"$jobs" WERROR=1 all && /usr/bin/python3 tests/integration/soak_jobs.py "${JOB_RUNS:-40}" &&
        KILL_ROUNDS=${JOB_RUNS:-40} /usr/bin/python3 tests/integration/test_ssh_sftp.py test_killed_processes_leave_no_job_twice_and_no_half_job
}

# The CPU engine's bits on another architecture.
aarch64() {
    local models=()
    [ -n "$ALL_MODELS" ] && models=(tests/reference/data/tiny/*.gguf)
    tests/aarch64.sh "${models[@]##*/}" || [ $? -eq 77 ]
}

# The Debian package's life in a fresh root, without systemd and under one that is process 1.
package() {
    tests/package.sh || [ $? -eq 77 ]
}

# A batch over ssh in a container built without any registry.
container() {
    tests/container.sh || [ $? -eq 77 ]
}

# An array of jobs on a Slurm of this machine.
slurm() {
    tests/slurm.sh || [ $? -eq 77 ]
}

# The Kubernetes manifests against the API's schemas, the dashboard against Grafana's.
kubernetes() {
    { tests/kubernetes.sh || [ $? -eq 77 ]; } && { tests/dashboard.sh || [ $? -eq 77 ]; }
}

# package and container make a fresh Debian root each: they run by name, or with `make prove`.
usual="second-compiler aarch64 thread-sanitizer sanitizers simulator host-store oracles canary torture jobs soak fuzz services slurm kubernetes"
wanted=$*
export -f aarch64 sanitized threads second_compiler fuzz simulator soak torture jobs_killed services host_store oracles canary package container slurm kubernetes
export jobs
part second-compiler  second_compiler
part aarch64          aarch64
part thread-sanitizer threads
part sanitizers       sanitized
part simulator        simulator
part host-store       host_store
part oracles          oracles
part canary           canary
part torture          torture
part soak             soak
part jobs             jobs_killed
part fuzz             fuzz
part services         services
part package          package
part container        container
part slurm            slurm
part kubernetes       kubernetes
for name in $wanted; do
    case $known in *" $name "*) ;; *) failed=$((failed + 1)); echo "FAIL  $name (there is no such part)" ;; esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
