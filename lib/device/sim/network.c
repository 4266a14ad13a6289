/* network.c - how a group spans nodes, and the formulas for collectives and messages. */
#include "device/sim/network.h"

#include <math.h>
#include <stdbool.h>

int vfm_sim_check_ranks(const struct vfm_machine *m, int ranks, struct vfm_err *err)
{
	if (m->kind == VFM_MACHINE_CPU && m->node_gpus != ranks)
		return vfm_fail(err, VFM_EUSAGE,
			"the machine '%s' was measured with %lld rank%s, this job has %d (vfm-bench calibrate -n %d)",
			m->name, (long long)m->node_gpus, m->node_gpus > 1 ? "s" : "", ranks, ranks);
	if (m->node_gpus > 0 || ranks == 1)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "the machine '%s' has no rates of several GPUs (gpus_per_node)", m->name);
}

int vfm_sim_set_node(struct vfm_machine *m, int64_t nodes, int64_t per_node, struct vfm_err *err)
{
	if (m->kind == VFM_MACHINE_CPU && nodes > 1)
		return vfm_fail(err, VFM_EUSAGE,
			"the machine '%s' is a CPU without a network, but the job has %lld nodes", m->name,
			(long long)nodes);
	if (m->kind == VFM_MACHINE_CPU || !m->node_gpus)
		return 0; /* vfm_sim_check_ranks compares the ranks */
	if (per_node > m->node_gpus)
		return vfm_fail(err, VFM_EUSAGE,
			"the job has %lld tasks on a node, but a node of the machine '%s' has %lld GPU%s "
			"(gpus_per_node)",
			(long long)per_node, m->name, (long long)m->node_gpus, m->node_gpus > 1 ? "s" : "");
	m->node_gpus = per_node;
	return 0;
}

struct vfm_sim_span vfm_sim_span_of(const struct vfm_machine *m, const int *rank, int n)
{
	struct vfm_sim_span g = {.ranks = n};

	/* Groups ascend, so the ranks of a node are neighbours. */
	for (int i = 0, here = 0; i < n; i++) {
		bool same = i > 0 && rank[i] / m->node_gpus == rank[i - 1] / m->node_gpus;

		here = same ? here + 1 : 1;
		g.nodes += !same;
		g.per_node = here > g.per_node ? here : g.per_node;
	}
	return g;
}

static double ring_latency(const struct vfm_machine *m, const struct vfm_sim_span *g, enum vfm_estimate e)
{
	return 1e-6 *
		(m->collective.v[e] + m->hop.v[e] * fmax(g->per_node - 2, 0) + m->network_hop.v[e] * (g->nodes - 1));
}

static double tree_latency(const struct vfm_machine *m, const struct vfm_sim_span *g, enum vfm_estimate e)
{
	return 1e-6 *
		(m->collective.v[e] + m->hop.v[e] * fmax(g->per_node - 2, 0) +
			2 * m->network_hop.v[e] * log2(g->nodes));
}

double vfm_sim_coll_s(const struct vfm_machine *m, const struct vfm_sim_span *g, enum vfm_sim_coll kind, double bytes,
	enum vfm_estimate e)
{
	double bandwidth = m->nvlink.v[e] * 1e9, part = (double)(g->ranks - 1) / g->ranks;
	double latency = ring_latency(m, g, e);

	if (g->ranks < 2)
		return 0;
	if (g->nodes > 1)
		bandwidth = fmin(bandwidth, g->per_node * m->network.v[e] * 1e9);
	switch (kind) {
	case VFM_SIM_ALL_REDUCE:
		return 2 * part * bytes / bandwidth + fmin(2 * latency, tree_latency(m, g, e));
	case VFM_SIM_BROADCAST:
		return bytes / bandwidth + latency;
	default:
		return part * bytes / bandwidth + latency;
	}
}

double vfm_sim_messages_s(const struct vfm_machine *m, double near, double far, enum vfm_estimate e)
{
	double latency = m->collective.v[e] + (far > 0 ? m->network_hop.v[e] : 0);

	return 1e-6 * latency + fmax(near / (m->nvlink.v[e] * 1e9), far / (m->network.v[e] * 1e9));
}
