/* split.c - divides samples by a hash of their key or parent, and checks that two plans share no sample. */
#include "data/plan/split.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>

#include "base/par.h"
#include "data/record/record.h"
#include "data/record/sample_key.h"

enum { SPLIT_GRAIN = 256 };

uint64_t vfm_split_source(uint64_t id, const char *parent)
{
	return parent ? vfm_sample_id(parent) : id;
}

bool vfm_split_is_held_out(uint64_t source, double fraction)
{
	return (double)(source >> 11) * 0x1p-53 < fraction;
}

struct split_job {
	struct vfm_index *ix;
	double fraction;
	bool *held;
	pthread_mutex_t lock; /* of the following */
	int rc;
	struct vfm_err err; /* the first failure */
};

static int split_sample(const struct split_job *j, int64_t i, struct vfm_err *err)
{
	struct vfm_index_record r;
	json_t *rec;

	TRY(vfm_index_at(j->ix, (uint64_t)i, &r, err));
	TRY(vfm_index_read_json(j->ix, &r, &rec, err));
	j->held[i] = vfm_split_is_held_out(vfm_split_source(r.id, vfm_rec_str(rec, "parent", NULL)), j->fraction);
	json_decref(rec);
	return 0;
}

static void split_range(int64_t i0, int64_t i1, void *ctx)
{
	struct split_job *j = ctx;
	struct vfm_err err = {0};
	int rc = 0;

	for (int64_t i = i0; i < i1 && rc == 0; i++)
		rc = split_sample(j, i, &err);
	if (rc == 0)
		return;
	pthread_mutex_lock(&j->lock);
	if (j->rc == 0) {
		j->rc = rc;
		j->err = err;
	}
	pthread_mutex_unlock(&j->lock);
}

int vfm_split_read(struct vfm_index *ix, double fraction, bool *held, struct vfm_err *err)
{
	struct split_job j = {.ix = ix, .fraction = fraction, .held = held, .lock = PTHREAD_MUTEX_INITIALIZER};

	vfm_par_for((int64_t)vfm_index_info(ix)->n_records, SPLIT_GRAIN, split_range, &j);
	if (j.rc < 0 && err)
		*err = j.err;
	return j.rc;
}

/* Returns whether both plans have a set of the same index, and its name. */
static bool share_index(const struct vfm_plan_header *a, const struct vfm_plan_header *b, const char **name)
{
	for (int32_t i = 0; i < a->n_sets; i++)
		for (int32_t k = 0; k < b->n_sets; k++)
			if (!strcmp(a->sets[i].index_sha256, b->sets[k].index_sha256)) {
				*name = a->sets[i].name;
				return true;
			}
	return false;
}

int vfm_split_check_disjoint(const struct vfm_plan_header *train, const char *train_path,
	const struct vfm_plan_header *held, const char *held_path, struct vfm_err *err)
{
	const char *name;

	if (!share_index(train, held, &name))
		return 0;
	if (train->side != VFM_SIDE_TRAIN || held->side != VFM_SIDE_HELD_OUT)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' and '%s' both have set '%s', and %s was not packed as %s (vfm-pack --held-out): samples "
			"of the training may be in it",
			train_path, held_path, name, train->side != VFM_SIDE_TRAIN ? "the former" : "the latter",
			train->side != VFM_SIDE_TRAIN ? "training data" : "held-out data");
	if (held->held_out > train->held_out)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' holds out %g of set '%s', but '%s' is without %g only: samples of the training are in it",
			held_path, held->held_out, name, train_path, train->held_out);
	return 0;
}
