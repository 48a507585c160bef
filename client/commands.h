/* commands.h - the verbs of `weir`, one file each (cmd_*.c), and the flags they show in their help; main.c has those about the program itself. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include "command.h"

int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_batch(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_worker(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_verify(int argc, char **argv);

size_t generate_flags(struct flag *ret_flags);
size_t chat_flags(struct flag *ret_flags);
size_t batch_flags(struct flag *ret_flags);
size_t tokenize_flags(struct flag *ret_flags);
size_t pool_flags(struct flag *ret_flags);   /* of models */
size_t status_flags(struct flag *ret_flags);
size_t worker_flags(struct flag *ret_flags);
size_t trace_flags(struct flag *ret_flags);
size_t key_flags(struct flag *ret_flags);
size_t verify_flags(struct flag *ret_flags);
size_t top_flags(struct flag *ret_flags);

/* The help of one verb on standard output; EXIT_DONE. */
int command_help(const char *verb);

/* Beside this program, else the name alone (found by PATH).  path [4096]. */
const char *command_sibling(const char *name, char *path);

#endif
