#!/bin/bash
# The worker loads a CUDA plug-in that lies beside it and answers through it as on the CPU.  (The plug-in is the emulated one.)
build=$(dirname "${WEIR_BIN:-build/bin}")
plugin=$build/emulation/libweir_cuda.so
model=${WEIR_TEST_MODEL:-$HOME/.cache/weir/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$plugin" ] && [ -x "$build/bin/weir-worker" ] && [ -f "$model" ] || { echo "no emulated plug-in, worker or model"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$build/bin/weir-worker" "$plugin" "$folder"

answer() { # answer DEVICE [PROMPT]
    "$folder/weir-worker" -m "$model" --device "$1" --context 128 --kv-blocks 16 --max-rows 16 --max-seqs 2 --greedy --max-tokens 4 \
        --generate "${2:-1, 2, 3, 4, 5,}" 2>"$folder/$1.log"
}
cpu=$(answer cpu) || { tail -n 5 "$folder/cpu.log"; exit 1; }
cuda=$(answer cuda) || { tail -n 5 "$folder/cuda.log"; exit 1; }
echo "cpu: '$cpu' cuda: '$cuda'"
[ -n "$cuda" ] && [ "$cpu" = "$cuda" ] || exit 1

# KV memory: what the broker reckons from the machine's memory is for CPUs; a worker on a device reckons from the device, shared by those on it.
kv() { # kv OPTION...: bytes the plan gives to KV
    "$folder/weir-worker" -m "$model" --plan "$@" 2>/dev/null | sed -n 's/^kv *\([0-9]*\) bytes.*/\1/p'
}
[ "$(kv --device cpu --cpu-kv-bytes 20M)" -le 20971520 ] || exit 1
alone=$(kv --device cuda --cpu-kv-bytes 20M) two=$(kv --device cuda --device-share 2) four=$(kv --device cuda --device-share 4)
echo "kv on the device: alone $alone, of two $two, of four $four"
[ "$alone" -gt 1073741824 ] && [ "$two" -lt "$alone" ] && [ "$four" -lt "$two" ] && [ "$four" -gt 1073741824 ] || exit 1
[ "$(kv --device cuda --device-share 4 --kv-bytes 20M)" -le 20971520 ] || exit 1

printf '[worker]\ncontext = 512\nmax-seqs = 4\nmax-rows = 16\n' >"$folder/config"
status_of() { # status_of FIELD OPTION...: what the broker's worker is said to have
    local field=$1
    shift
    WEIR_CONFIG=$folder/config "$build/bin/weir-broker" --runtime-dir "$folder/run" --worker-program "$folder/weir-worker" --model "m=$model" \
        --threads 1 --host-store-bytes 0 "$@" >"$folder/broker.log" 2>&1 &
    local broker=$!
    "$build/bin/weir" --connect "ipc://$folder/run/broker.sock" status --wait-ready 120 --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["workers"][0][sys.argv[1]])' "$field"
    kill -TERM "$broker"
    wait "$broker"
}
n=$(status_of blocks_total --device cuda) m=$(status_of blocks_total --device cuda --kv-bytes 20M)
echo "blocks: $n of its own, $m as told"
[ "$n" -eq 128 ] && [ "$m" -eq 56 ] || { tail -n 5 "$folder/broker.log"; exit 1; } # 4 sequences of 512 tokens; 20 MiB

# Fast prefill reaches the worker, and its answers say so.
exact=$(status_of system_fingerprint --device cuda --kv-bytes 20M) fast=$(status_of system_fingerprint --device cuda --kv-bytes 20M --fast-prefill)
echo "ids: $exact, $fast"
case $exact in *fast* | "") exit 1 ;; esac
case $fast in *fast*) ;; *) exit 1 ;; esac

# A launch that fails ends the worker, with the reason in its log.
if WEIR_EMULATED_LAUNCHES=300 answer cuda >"$folder/failed" 2>/dev/null; then echo "a worker on a broken device answered"; exit 1; fi
grep -q 'event=device .*reason="launch: unspecified launch failure' "$folder/cuda.log" || { tail -n 5 "$folder/cuda.log"; exit 1; }

# In a pool the broker takes over: the worker's next process, on a device that works, ends the answer that the first had begun.
cat >"$folder/worker" <<END
#!/bin/sh
mkdir "$folder/first" 2>/dev/null && export WEIR_EMULATED_LAUNCHES=400
exec "$folder/weir-worker" "\$@"
END
chmod +x "$folder/worker"
WEIR_CONFIG=$folder/config "$build/bin/weir-broker" --runtime-dir "$folder/pool" --worker-program "$folder/worker" --model "m=$model" \
    --threads 1 --host-store-bytes 0 --kv-bytes 20M --device cuda >"$folder/broker.log" 2>&1 &
broker=$!
pool="ipc://$folder/pool/broker.sock"
"$build/bin/weir" --connect "$pool" status --wait-ready 120 >/dev/null || { tail -n 5 "$folder/broker.log"; exit 1; }
answered=$("$build/bin/weir" --connect "$pool" generate --json --temperature 0 --max-tokens 4 "1, 2," 2>"$folder/generate.log")
kill -TERM "$broker"
wait "$broker"
echo "$answered" | python3 -c 'import json, sys; a = json.load(sys.stdin); sys.exit(a["text"] != sys.argv[1] or a["takeovers"] != 1)' "$(answer cpu "1, 2,")" ||
    { echo "$answered"; cat "$folder/generate.log"; tail -n 5 "$folder/broker.log"; exit 1; }
grep -q 'event=device .*reason="launch: unspecified launch failure' "$folder/broker.log" || { tail -n 5 "$folder/broker.log"; exit 1; }

# A device that is not there, and one with too little memory: cuda is refused in words, auto takes the CPU.
refused() { # refused WORDS DEVICE OPTION...
    local words=$1
    shift
    "$folder/weir-worker" -m "$model" --context 128 --plan --device "$@" >/dev/null 2>"$folder/refused.log" && { echo "took it: $words"; exit 1; }
    grep -qF -- "$words" "$folder/refused.log" || { cat "$folder/refused.log"; exit 1; }
}
refused 'there is no CUDA device 1; devices are 0 to 0' cuda:1
export WEIR_EMULATED_MIB=64
refused 'MiB of device memory' cuda --kv-blocks 16
"$folder/weir-worker" -m "$model" --context 128 --kv-blocks 16 --plan --device auto 2>/dev/null | grep -q '^weights' || { echo "auto did not take the CPU"; exit 1; }
unset WEIR_EMULATED_MIB

# What only a GPU has is refused by name where there is none; auto does not pass over it either.
for device in cpu auto; do
    mv "$folder/libweir_cuda.so" "$folder/away" 2>/dev/null
    "$folder/weir-worker" -m "$model" --device $device --fast-prefill --plan 2>"$folder/refused.log" && { echo "refused nothing on $device"; exit 1; }
    grep -q -- '--fast-prefill' "$folder/refused.log" || { cat "$folder/refused.log"; exit 1; }
done
mv "$folder/away" "$folder/libweir_cuda.so"
"$folder/weir-worker" -m "$model" --device cuda --fast-prefill --context 128 --kv-blocks 16 --max-rows 16 --max-seqs 2 --plan >/dev/null 2>"$folder/fast.log" ||
    { cat "$folder/fast.log"; exit 1; }
