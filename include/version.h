/* version.h - which program this is. */
#ifndef VERSION_H
#define VERSION_H

const char *version_text(void);     /* "0.1.0" */
const char *version_build_id(void); /* of the source tree; broker, worker and plug-ins of one pool must agree */

#endif
