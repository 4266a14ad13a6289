/* tuning.c - matches parameters against the patterns of frozen ones and adapters. */
#include "spec/model/tuning.h"

#include <string.h>

const char *const vfm_frozen_names[] = {"same", "fp8", "int8", "nf4", NULL};

void vfm_tuning_defaults(struct vfm_tuning *t)
{
	*t = (struct vfm_tuning){.targets = {"blocks.*,!*.ada*,!*.router"}};
}

bool vfm_tuning_freezes(const struct vfm_tuning *t, const char *param)
{
	return t->freeze.text[0] ? vfm_patterns_match(&t->freeze, param) : t->rank > 0;
}

bool vfm_tuning_adapts(const struct vfm_tuning *t, const char *layer)
{
	return t->rank > 0 && vfm_patterns_match(&t->targets, layer);
}

double vfm_tuning_scale(const struct vfm_tuning *t)
{
	return t->rank > 0 && t->alpha > 0 ? t->alpha / (double)t->rank : 1;
}
