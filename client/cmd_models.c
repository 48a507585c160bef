/* cmd_models.c - `weir models`: what the pool serves. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

#include "terminal.h"

static struct {
    const char *connect;
    bool json;
} options;

size_t pool_flags(struct flag *ret_flags)
{
    ret_flags[0] =
        (struct flag){"json", 0, FLAG_SWITCH, &options.json, NULL, "print the broker's answer as JSON", 0, 0};
    return 1 + command_connect_flags(ret_flags + 1, &options.connect);
}

static void print_text(const json_t *model, const char *key)
{
    const char *text = json_string_value(json_object_get(model, key));

    if (text != NULL && text[0] != '\0') {
        fputs("  ", stdout);
        terminal_text(stdout, text, strlen(text));
    }
}

/* NAME (default)  2 of 2 workers ready  llama  context 2048  chatml  "SmolLM2" */
static void print_model(const json_t *model)
{
    const char *name = json_string_value(json_object_get(model, "name"));
    json_int_t context = json_integer_value(json_object_get(model, "context_tokens"));

    terminal_text(stdout, name != NULL ? name : "?", name != NULL ? strlen(name) : 1);
    printf("%s  %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " workers ready",
           json_is_true(json_object_get(model, "default")) ? " (default)" : "",
           json_integer_value(json_object_get(model, "workers_ready")),
           json_integer_value(json_object_get(model, "workers")));
    print_text(model, "architecture");
    if (context > 0)
        printf("  context %" JSON_INTEGER_FORMAT, context);
    print_text(model, "chat_template");
    print_text(model, "title");
    putchar('\n');
}

int cmd_models(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    struct weir_client *c = NULL;
    struct weir_error err;
    char *text = NULL;
    int n_args = flags_parse(flags, pool_flags(flags), "models", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("models");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 0)
        return command_usage("models", "it takes no argument, but there is \"%s\"", argv[0]);
    enum exit_code code = command_open("models", options.connect, &c);
    if (code != EXIT_DONE)
        return code;
    if (weir_query_wait(c, WEIR_QUERY_MODELS, &text, &err) != WEIR_OK) {
        code = command_error("models", &err);
        goto out;
    }
    json_t *root = json_loads(text, 0, NULL), *model;
    size_t i;
    if (options.json) {
        code = command_print_json(json_incref(root));
    } else {
        json_array_foreach(json_object_get(root, "models"), i, model) print_model(model);
        code = command_flush("models") ? EXIT_DONE : EXIT_FAILED;
    }
    json_decref(root);
out:
    free(text);
    weir_close(c);
    return code;
}
