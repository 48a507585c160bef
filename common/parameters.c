/* parameters.c - the list behind parameters.h.  Sorted, found by bisection; the unit test checks the order.
 *
 * A name that ends in '*' stands for all that begin so. */
#include "parameters.h"

static const char *const unsupported[] = {
    "adapters",
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "audio",
    "bad_words",
    "cache_prompt",
    "cache_salt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "dry_*",
    "dynatemp_*",
    "early_stopping",
    "echo",
    "enable_thinking",
    "function_call",
    "functions",
    "grammar",
    "guided_*",
    "id_slot",
    "include_stop_str_in_output",
    "json_schema",
    "length_penalty",
    "logit_processors",
    "logits_processors",
    "lora",
    "lora_request",
    "media_io_kwargs",
    "metadata",
    "min_tokens",
    "mirostat*",
    "mm_processor_kwargs",
    "modalities",
    "n_indent",
    "n_keep",
    "n_predict",
    "n_probs",
    "parallel_tool_calls",
    "penalize_nl",
    "post_sampling_probs",
    "prediction",
    "priority",
    "prompt_cache_key",
    "prompt_logprobs",
    "reasoning_effort",
    "reasoning_format",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "response_fields",
    "response_format",
    "return_tokens",
    "return_tokens_as_token_ids",
    "safety_identifier",
    "samplers",
    "service_tier",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "store",
    "stream_options",
    "structured_outputs",
    "suffix",
    "t_max_predict_ms",
    "tfs_z",
    "tool_choice",
    "tools",
    "top_a",
    "top_n_sigma",
    "truncate_prompt_tokens",
    "typ_p",
    "typical_p",
    "use_beam_search",
    "user",
    "verbosity",
    "web_search_options",
    "xtc_*",
};

/* <0, 0, >0: where name stands to an entry of the list. */
static int compare(struct span name, const char *entry)
{
    size_t n = strlen(entry);
    bool begins = n > 0 && entry[n - 1] == '*';

    if (begins)
        n--;
    int order = memcmp(name.at, entry, name.n < n ? name.n : n);
    if (order != 0)
        return order;
    if (name.n < n)
        return -1;
    return begins || name.n == n ? 0 : 1;
}

bool wire_is_unsupported_parameter(struct span name)
{
    size_t low = 0, high = sizeof(unsupported) / sizeof(unsupported[0]);

    if (name.n == 0)
        return false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare(name, unsupported[middle]);

        if (order == 0)
            return true;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}
