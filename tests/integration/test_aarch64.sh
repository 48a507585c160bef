#!/bin/sh
# Two of the models of tests/aarch64.sh, in every run of the tests.
exec "$(dirname "$0")/../aarch64.sh" tiny-llama-Q4_K_M.gguf tiny-qwen3-Q8_0.gguf
