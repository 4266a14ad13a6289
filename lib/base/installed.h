/* installed.h - finds the files that the program is installed with. */
#ifndef VFM_BASE_INSTALLED_H
#define VFM_BASE_INSTALLED_H

#include "base/err.h"

/* Returns the path of the file `name` of a folder such as "machines", which the caller frees.  A name with a slash or a
 * dot is a path.  Other names are NAME.json in the folder that the environment variable `env` names, else in this
 * installation: share/vfm/FOLDER or share/FOLDER next to the folder of the command.  NULL: there is none;
 * VFM_EUSAGE. */
char *vfm_installed_find(const char *folder, const char *name, const char *env, struct vfm_err *err);
/* Returns the path of the program `name` of such a folder, which the caller frees; NULL: there is none, or the name has
 * a slash. */
char *vfm_installed_program(const char *folder, const char *name);

#endif
