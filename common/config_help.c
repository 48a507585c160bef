/* config_help.c - --help from the same table that is parsed, so that the two cannot disagree. */
#include <string.h>

#include "config.h"

enum { COLUMNS = 110, HELP_COLUMN = 30 };

/* Words of text from column `at` on, new lines indented to HELP_COLUMN. */
static void print_wrapped(FILE *out, const char *text, size_t at)
{
    while (*text != '\0') {
        size_t word = strcspn(text, " ");

        if (at > HELP_COLUMN && at + 1 + word > COLUMNS) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        } else if (at > HELP_COLUMN) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, word, out);
        at += word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_line(FILE *out, const char *flag, const char *text)
{
    int n = fprintf(out, "  %s", flag);

    if (n < HELP_COLUMN)
        fprintf(out, "%*s", HELP_COLUMN - n, "");
    else
        fprintf(out, "\n%*s", HELP_COLUMN, "");
    print_wrapped(out, text, HELP_COLUMN);
}

static void print_key(FILE *out, const struct config_key *k)
{
    char flag[96], variable[64], text[1024], shorthand[5] = "    ";
    size_t n = 0;

    if (k->short_flag != '\0')
        snprintf(shorthand, sizeof(shorthand), "-%c, ", k->short_flag);
    snprintf(flag, sizeof(flag), "%s--%s%s%s%s", shorthand, k->type == CONFIG_BOOL ? "[no-]" : "", k->name,
             k->value != NULL ? " " : "", k->value != NULL ? k->value : "");
    for (; k->name[n] != '\0' && n + 1 < sizeof(variable); n++)
        variable[n] = k->name[n] == '-' ? '_' : k->name[n] >= 'a' && k->name[n] <= 'z' ? (char)(k->name[n] - 32) : k->name[n];
    variable[n] = '\0';
    snprintf(text, sizeof(text), "%s%s (%s%s%sWEIR_%s)", k->help, k->type == CONFIG_LIST ? "; may repeat" : "",
             k->fallback != NULL ? "default " : "", k->fallback != NULL ? k->fallback : "", k->fallback != NULL ? "; " : "",
             variable);
    print_line(out, flag, text);
}

void config_print_help(FILE *out, const char *usage, const char *about, const struct config_key *keys, size_t n_keys)
{
    fprintf(out, "usage: %s\n\n%s\n\n", usage, about);
    for (size_t i = 0; i < n_keys; i++)
        print_key(out, &keys[i]);
    print_line(out, "    --config FILE", "read FILE, an INI file, for what is not given here (WEIR_CONFIG)");
    print_line(out, "-h, --help", "print this and leave");
    print_line(out, "    --version", "print the version and leave");
}
