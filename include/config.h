/* config.h - one table of keys gives command-line flags, WEIR_* environment variables, the configuration file and --help.
 *
 * A key "runtime-dir" is --runtime-dir VALUE (or --runtime-dir=VALUE), WEIR_RUNTIME_DIR, and `runtime-dir = VALUE` in the
 * program's section ([broker], [gateway], ...) or in [weir], which all programs read, of an INI file.  Precedence: flag,
 * environment, file, fallback.  The file is --config FILE, else WEIR_CONFIG, else none.  Booleans: --x, --no-x, yes/no/true/false/1/0.
 * An unknown flag, an unknown key in the program's section, or a value that does not parse or is out of range is an error that
 * names where it came from ("weir.conf:12", "--workers", "WEIR_WORKERS"); a flag near to a known one is suggested.  Other
 * programs' sections are skipped, and so are keys of [weir] that this table lacks, for another program may have them; but
 * one letter off a known name is an error there too.  Comments are whole lines that begin with # or ;.
 * Values that a stronger source replaces are checked all the same.  An empty environment variable counts as unset. */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "error.h"
#include "status.h"

#define CONFIG_UNIT_VALUE_MAX (UINT64_C(1) << 53) /* the largest value of CONFIG_BYTES and CONFIG_MS */

enum config_type {
    CONFIG_STRING,
    CONFIG_BOOL,
    CONFIG_U64,      /* decimal */
    CONFIG_BYTES,    /* 512, 64K, 1.5G, 2GiB: powers of 1024 */
    CONFIG_MS,       /* 250ms, 5s, 10m, 1h, 2d; bare numbers are seconds */
    CONFIG_F64,
    CONFIG_LIST,     /* may repeat; each occurrence adds a string.  Flags replace the list of the environment and the file.  In the
                      * environment, in a fallback, commas separate */
};

struct config_key {
    const char *name;      /* "runtime-dir" */
    enum config_type type;
    const char *fallback;  /* as the user would write it; NULL: unset (string NULL, number 0, false, empty list) */
    const char *value;     /* name of the value in --help: "DIR"; NULL for booleans */
    const char *help;      /* one sentence without a final full stop */
    double min, max;       /* for numbers, bytes and ms; both 0: any */
    char short_flag;       /* 'o' for -o; 0: none */
};

struct config; /* opaque */

/* Read everything.  argv[0] is skipped; "--" ends flags; what is not a flag is kept in order as arguments.
 * keys [n_keys] are borrowed for the life of the config.  When --help or --version is there,
 * only the command line is read and the caller acts on it.
 * ST_OK, ST_INVALID (*err says what, code ERR_INVALID_PARAMETER), ST_NOMEM, ST_SYSTEM (the file cannot be read). */
MUST_CHECK enum status config_load(const struct config_key *keys, size_t n_keys, const char *section, int argc, char *const *argv,
                                   struct config **ret_config, struct error *err);
void config_free(struct config *c);

/* Values by key name.  A name that is not in the table, or of another type, is a programming error and aborts. */
const char *config_string(const struct config *c, const char *name); /* NULL when unset */
bool config_bool(const struct config *c, const char *name);
uint64_t config_u64(const struct config *c, const char *name);       /* CONFIG_U64, CONFIG_BYTES, CONFIG_MS */
double config_f64(const struct config *c, const char *name);
size_t config_list(const struct config *c, const char *name, const char *const **ret_items);
bool config_is_set(const struct config *c, const char *name);        /* by flag, environment or file */
bool config_help_wanted(const struct config *c);                     /* --help or -h stood on the command line */
bool config_version_wanted(const struct config *c);                  /* --version */

size_t config_n_args(const struct config *c);
const char *config_arg(const struct config *c, size_t i);            /* NULL past the end */

/* usage: "weir-broker [OPTIONS]"; then one line a key with fallback and environment name, 110 columns at most. */
void config_print_help(FILE *out, const char *usage, const char *about, const struct config_key *keys, size_t n_keys);

#endif
