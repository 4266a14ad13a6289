/* score_facts.h - the meaning, unit and usual limits of each score of score.h, for pages.  vfm-scores(7) has the
 * formulas.  Constant data. */
#ifndef VFM_MEDIA_SCORE_SCORE_FACTS_H
#define VFM_MEDIA_SCORE_SCORE_FACTS_H

struct vfm_score_fact {
	const char *name;    /* "motion" */
	const char *group;   /* heading in vfm-scores(7), equal for consecutive scores */
	const char *meaning; /* one sentence */
	const char *unit;    /* "" for a share or an index without unit */
	/* A clip below `low` or above `high` usually has a fault; NAN: no limit on this side.  These are the limits of
	 * the default pipeline if it filters by the score. */
	double low, high;
};

/* Returns the facts of score i, in the order of VFM_SCORE_LIST, or NULL after the last. */
const struct vfm_score_fact *vfm_score_fact(int i);
/* Returns the facts of a score, or NULL for the score of another program. */
const struct vfm_score_fact *vfm_score_fact_of(const char *name);

#endif
