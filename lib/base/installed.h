/* installed.h - finds files that are installed with the program. */
#ifndef VFM_BASE_INSTALLED_H
#define VFM_BASE_INSTALLED_H

#include <stdbool.h>

#include "base/err.h"

/* Returns the path of `name` in a folder such as "machines"; the caller frees it.  A name with a slash or a dot is a
 * path.  Any other name means NAME.json in the folder that the environment variable `env` names, or else in this
 * installation: share/vfm/FOLDER or share/FOLDER next to the folder of the command.  Returns NULL with VFM_EUSAGE if
 * there is none. */
char *vfm_installed_find(const char *folder, const char *name, const char *env, struct vfm_err *err);
/* Returns the folder of the running command, which the caller frees, or NULL if /proc does not tell it. */
char *vfm_command_folder(void);
/* Returns the path of the program `name` in such a folder of this installation; the caller frees it.  Returns NULL if
 * there is none, if the name has a slash, or if PATH has such a program. */
char *vfm_installed_program(const char *folder, const char *name);
/* Replaces argv[0], which is malloc'ed, by the path of the program in such a folder if there is one. */
void vfm_installed_use(const char *folder, char **argv);
/* Returns whether `name` can be run: a path, or the name of a program in PATH. */
bool vfm_is_program(const char *name);

#endif
