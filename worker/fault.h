/* fault.h - named points at which a test may end the process.  Nothing is compiled in unless WEIR_FAULTS is defined. */
#ifndef FAULT_H
#define FAULT_H

#ifdef WEIR_FAULTS
void fault_point(const char *name); /* the test's */
#define FAULT(name) fault_point(name)
#else
#define FAULT(name) ((void)0)
#endif

#endif
