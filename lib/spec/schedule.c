#include "spec/schedule.h"

void vfm_stage_layers(const struct vfm_model_spec *m, int parts, int part, int64_t *first, int64_t *end)
{
	*first = m->layers * part / parts;
	*end = m->layers * (part + 1) / parts;
}
