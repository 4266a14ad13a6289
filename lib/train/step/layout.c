/* layout.c - declares the model as each rank would, to find the slices of every tensor that it owns. */
#include "train/step/layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "net/diffusion/model.h"

struct vfm_layout {
	struct vfm_config c;
	int ranks;
	struct rank {
		struct vfm_mesh mesh;
		struct vfm_params ps;
		struct vfm_model *model;
	} * *rank; /* [ranks]; NULL: not created yet */
};

int vfm_layout_parse(struct vfm_config *c, const char *text, int *ranks, struct vfm_err *err)
{
	struct vfm_parallel *p = &c->parallel;
	char *copy = vfm_strdup(text), *save = NULL;
	int rc = 0;

	vfm_parallel_defaults(p);
	p->dp = 1;
	for (char *s = strtok_r(copy, ",", &save); s && !rc; s = strtok_r(NULL, ",", &save)) {
		char *set = vfm_strfmt("parallel.%s%s", s, strchr(s, '=') ? "" : "=true");

		rc = vfm_config_set(c, set, err);
		free(set);
	}
	free(copy);
	TRY(rc);
	if (p->dp < 1)
		p->dp = 1;
	if (p->tp * p->cp > 1 << 20 || p->tp * p->cp * p->pp > 1 << 20 || p->tp * p->cp * p->pp * p->dp > 1 << 20)
		return vfm_fail(err, VFM_EUSAGE, "more than %d ranks", 1 << 20);
	*ranks = (int)(p->tp * p->cp * p->pp * p->dp);
	return vfm_parallel_check(p, &c->model, *ranks, err);
}

struct vfm_layout *vfm_layout_new(const struct vfm_config *c, int ranks)
{
	struct vfm_layout *l = vfm_calloc(1, sizeof(*l));

	l->c = *c;
	l->ranks = ranks;
	l->rank = vfm_calloc((size_t)ranks, sizeof(struct rank *));
	return l;
}

void vfm_layout_free(struct vfm_layout *l)
{
	if (!l)
		return;
	for (int r = 0; r < l->ranks; r++) {
		if (!l->rank[r])
			continue;
		vfm_model_free(l->rank[r]->model);
		vfm_params_release(&l->rank[r]->ps);
		free(l->rank[r]);
	}
	free(l->rank);
	free(l);
}

static struct rank *rank_of(struct vfm_layout *l, int r)
{
	struct rank *k = l->rank[r];

	if (k)
		return k;
	k = l->rank[r] = vfm_calloc(1, sizeof(*k));
	k->mesh = *vfm_mesh_one();
	k->mesh.p = l->c.parallel;
	k->mesh.rank = r;
	k->mesh.world_size = l->ranks;
	vfm_parallel_size(&l->c.parallel, k->mesh.size);
	vfm_parallel_coord(&l->c.parallel, r, k->mesh.coord);
	vfm_params_init(&k->ps, NULL, &k->mesh);
	k->model = vfm_model_new(&l->c.model, &k->ps);
	return k;
}

/* Returns the parameter of a tensor such as "optim/m/blocks.0.fc1.weight"; NULL if this pp stage has none. */
static const struct vfm_param *param_of(const struct vfm_params *ps, const struct vfm_ckpt_tensor *t)
{
	const char *s = strchr(t->name, '/');

	if (s && !strncmp(t->name, "optim/", 6))
		s = strchr(s + 1, '/');
	return s ? vfm_param_find(ps, s + 1) : NULL;
}

/* Returns this rank's index among the *n ranks of its pp stage that replicate the local tensor; -1 if the rank writes
 * no part of it. */
static int replica_index(const struct vfm_mesh *m, const struct vfm_param *p, int *n)
{
	const int *at = m->coord, *of = m->size;
	int data = at[VFM_AX_DP] * of[VFM_AX_CP] + at[VFM_AX_CP];

	*n = of[VFM_AX_DP] * of[VFM_AX_CP];
	if (p->d.cut[VFM_AX_EP].groups) { /* experts: the ranks with the same ep coordinate */
		*n = *n * of[VFM_AX_TP] / of[VFM_AX_EP];
		return (data * of[VFM_AX_TP] + at[VFM_AX_TP]) / of[VFM_AX_EP];
	}
	if (!p->d.cut[VFM_AX_TP].groups && at[VFM_AX_TP])
		return -1;
	return data;
}

/* The fp8 amax histories are unsharded and identical on all ranks of a pp stage; the first rank writes them. */
static bool is_history(const struct vfm_ckpt_tensor *t)
{
	return !strncmp(t->name, "fp8/", 4);
}

int vfm_layout_own(void *ctx, int rank, const struct vfm_ckpt_tensor *t, struct vfm_slice *out, struct vfm_err *err)
{
	struct vfm_layout *l = ctx;
	struct rank *k = rank_of(l, rank);
	const struct vfm_param *p = param_of(&k->ps, t);
	int n, i, shard;

	if (k->ps.bad.code) {
		*err = k->ps.bad;
		return err->code;
	}
	if (!p) { /* a tensor of another pp stage, or of none */
		if (rank)
			return 0;
		for (int r = 1; r < l->ranks; r++)
			if (param_of(&rank_of(l, r)->ps, t))
				return 0;
		return 1;
	}
	if (is_history(t)) {
		const int *at = k->mesh.coord;

		return at[VFM_AX_TP] == 0 && at[VFM_AX_CP] == 0 && at[VFM_AX_DP] == 0;
	}
	if (!vfm_ckpt_has_shape(t, p->d.ndim, p->d.shape))
		return vfm_fail(
			err, VFM_EUSAGE, "tensor '%s' has another shape than the model of its configuration", t->name);
	i = replica_index(&k->mesh, p, &n);
	if (i < 0 || (p->all_pp_stages && k->mesh.coord[VFM_AX_PP]))
		return 0;
	shard = 1;
	if (l->c.parallel.fsdp || l->c.parallel.distopt)
		shard = l->c.parallel.shard < n ? (int)l->c.parallel.shard : n;
	out->part = &p->part;
	if (i >= shard)
		return 0;
	vfm_flat_cut(p->n, shard, i, &out->a, &out->b);
	return out->a < out->b;
}
