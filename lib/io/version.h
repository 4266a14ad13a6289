/* version.h - the version, commit and features of this build. */
#ifndef VFM_IO_VERSION_H
#define VFM_IO_VERSION_H

/* Returns the version as `--version` prints it: "0.1.0 (abc1234) cpu media". */
const char *vfm_version(void);
/* Returns words that --version appends, "" or " cuda"; NULL: none.  Set it first in main. */
extern const char *(*vfm_version_more)(void);
/* The commit, "abc1234"; an array, so that its address is a constant. */
extern const char vfm_commit[];

#endif
