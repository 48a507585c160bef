/* fault.h - named points at which a test may end the process, or make something fail that no system call decides.
 *
 * Nothing is compiled in unless WEIR_FAULTS is defined (make FAULTS=1 B=build/faults).  Then
 *
 *   WEIR_FAULT=NAME=ACTION[@N]    at the Nth time (1) that point NAME is come by.  ACTION: kill, abort, exit, hang; fail, at a FAULT_FAILS
 *   WEIR_FAULT_TOKEN=FILE         a FIFO with one byte: only the process that gets it, however many come by
 *
 * Names are FOLDER.WHAT; tests/torture/faults.py drives all of worker. and broker., tests/unit/test_host_store_faults.c the host store's, with
 * a fault_point() of its own. */
#ifndef FAULT_H
#define FAULT_H

#ifdef WEIR_FAULTS
#include <stdbool.h>

void fault_point(const char *name);
bool fault_fails(const char *name);
#define FAULT(name) fault_point(name)
#define FAULT_FAILS(name) fault_fails(name)
#else
#define FAULT(name) ((void)0)
#define FAULT_FAILS(name) (0)
#endif

#endif
