/* version.c - the only file that is compiled with the version; the rest asks here. */
#include "version.h"

#ifndef WEIR_VERSION
#define WEIR_VERSION "0.0.0"
#endif
#ifndef WEIR_BUILD_ID
#define WEIR_BUILD_ID "unknown"
#endif

const char *version_text(void)
{
    return WEIR_VERSION;
}

const char *version_build_id(void)
{
    return WEIR_BUILD_ID;
}
