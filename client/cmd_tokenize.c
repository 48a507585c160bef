/* cmd_tokenize.c - `weir tokenize`: the ids of a text. */
#include "commands.h"

#include <stdlib.h>

static struct {
    const char *connect, *model;
    bool json, special;
} options;

size_t tokenize_flags(struct flag *ret_flags)
{
    size_t n = 0;

    ret_flags[n++] =
        (struct flag){"json", 0, FLAG_SWITCH, &options.json, NULL, "print {\"ids\": [..], \"n\": N}", 0, 0};
    ret_flags[n++] = (struct flag){
        "special", 0, FLAG_SWITCH, &options.special, NULL, "read special tokens in the text as such", 0, 0};
    ret_flags[n++] = (struct flag){
        "model", 0, FLAG_TEXT, &options.model, "NAME", "whose tokenizer (default: the first)", 0, 0};
    return n + command_connect_flags(ret_flags + n, &options.connect);
}

static enum exit_code print_ids(const int32_t *ids, size_t n)
{
    if (options.json) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer(ids[i]));
        return command_print_json(json_pack("{s:o, s:I}", "ids", list, "n", (json_int_t)n));
    }
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i > 0 ? " " : "", ids[i]);
    putchar('\n');
    return command_flush("tokenize") ? EXIT_DONE : EXIT_FAILED;
}

int cmd_tokenize(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_client *c = NULL;
    struct weir_error err;
    char *text = NULL;
    size_t bytes = 0, n = 0;
    int32_t *ids = NULL;
    int n_args = flags_parse(flags, tokenize_flags(flags), "tokenize", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("tokenize");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args != 1)
        return command_usage("tokenize", "one text, please: put it in quotes, or give - for standard input");
    enum exit_code code = command_text("tokenize", argv[0], &text, &bytes);
    if (code == EXIT_DONE)
        code = command_open("tokenize", options.connect, &c);
    if (code == EXIT_DONE) {
        if (weir_tokenize(c, options.model, text, bytes, options.special, &ids, &n, &err) != WEIR_OK)
            code = command_error("tokenize", &err);
        else
            code = print_ids(ids, n);
    }
    free(ids);
    free(text);
    weir_close(c);
    return code;
}
