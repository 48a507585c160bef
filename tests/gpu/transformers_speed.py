#!/usr/bin/env python3
"""Hugging Face Transformers with its KV cache on this GPU, random bf16 weights of the same shapes: decode at 1 and 32 sequences.

usage: transformers_speed.py NAME SECONDS      NAME: smollm2 or 8b-bf16.  Prints JSON lines like gpu_check; nothing where torch
or transformers are missing.
"""
import json
import sys
import time

SHAPES = {
    "smollm2": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                    vocab_size=49152, tie_word_embeddings=True),
    "8b-bf16": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                    vocab_size=128256, tie_word_embeddings=True),
}


def main():
    name, seconds = sys.argv[1], float(sys.argv[2])
    try:
        import torch
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
    except ImportError as e:
        print(f"transformers_speed: {e}", file=sys.stderr)
        return
    if not torch.cuda.is_available():
        print("transformers_speed: torch sees no GPU", file=sys.stderr)
        return
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[name], max_position_embeddings=8192)).eval()
    for n in (1, 32):
        with torch.inference_mode():
            cache = DynamicCache()
            ids = torch.randint(0, 1000, (n, 128), device="cuda")
            next_ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            steps, began = 0, 0.0
            while steps < 500:
                if steps == 4:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                if steps > 8 and time.perf_counter() - began > seconds:
                    break
                next_ids = model(next_ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
                steps += 1
            torch.cuda.synchronize()
            each = (time.perf_counter() - began) / (steps - 4)
        print(json.dumps({"part": "transformers", "shape": name, "what": "decode", "sequences": n, "ms_a_step": round(each * 1e3, 4),
                          "tokens_a_second": round(n / each, 1)}), flush=True)


main()
