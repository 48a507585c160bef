/* beneath.h - opening words beneath the descriptor of a folder.  In the jobs process only.
 *
 * A word has no slash.  What is opened is never a link, never on another file system, never outside the folder. */
#ifndef BENEATH_H
#define BENEATH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* As openat(), with O_CLOEXEC and O_NOFOLLOW; mode counts with O_CREAT only.  A descriptor, or -1 with errno. */
int beneath_open(int folder, const char *name, int flags, mode_t mode);

/* The folder names[0]/names[1]/... [n] under at, which stays the caller's.  make: those that are missing are made, mode 0700, and are on
 * disk when this returns.  A descriptor to read it by, or -1 with errno. */
int beneath_folder(int at, const char *const *names, size_t n, bool make);

#endif
