/* version.c - the version, commit and features that the build passes in. */
#include "io/version.h"

#ifndef VFM_FEATURES
#define VFM_FEATURES "cpu media"
#endif

const char *vfm_version(void)
{
	return VFM_VERSION " (" VFM_COMMIT ") " VFM_FEATURES;
}

const char *(*vfm_version_more)(void);
const char vfm_commit[] = VFM_COMMIT;
