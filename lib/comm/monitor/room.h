/* comm/monitor - who finds failed ranks.
 *
 * A tree of threads, one in each process, that notices a rank that ended or hangs, and tells all others.
 *
 * Used by: comm/coll starts it through the table of monitor.h
 * Calls: base, comm/coll
 * Read first: monitor.h
 */
