#include "spec/model/arch.h"

#include <stddef.h>
#include <string.h>

const struct vfm_arch *const vfm_archs[] = {
#define X(name) &vfm_arch_##name,
	VFM_ARCH_LIST(X)
#undef X
		NULL};

const char *const vfm_arch_names[] = {
#define X(name) #name,
	VFM_ARCH_LIST(X)
#undef X
		NULL};

const struct vfm_preset *vfm_preset_at(int i)
{
	for (int a = 0; vfm_archs[a]; a++)
		for (const struct vfm_preset *p = vfm_archs[a]->presets; p->name; p++)
			if (i-- == 0)
				return p;
	return NULL;
}

const struct vfm_arch *vfm_arch_find(const char *name)
{
	for (int i = 0; name && vfm_arch_names[i]; i++)
		if (!strcmp(name, vfm_arch_names[i]))
			return vfm_archs[i];
	return NULL;
}
