package org.quailspark;

import java.util.LinkedHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.execution.ui.SparkListenerDriverAccumUpdates;
import org.apache.spark.util.AccumulatorContext;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.List;
import scala.collection.immutable.Map;
import scala.collection.immutable.Nil$;

/**
 * What Spark's UI shows of one AI operator: metrics of its node in a query, accumulators of a stage. Driver-side.
 *
 * Operators of one name share their metrics. Tasks send their numbers through the accumulator of Python; the driver adds them
 * here while the scheduler waits for it, so they reach the UI before the task's end does.
 */
public class OperatorMetrics {
  private static final String[] COUNTS = {"rows in", "rows out", "fresh tokens", "reused tokens", "recomputed tokens"};
  private static final int MOST = 10000; // names that are remembered
  private static final LinkedHashMap KNOWN = new LinkedHashMap();

  private final SparkContext context;
  private final String operator;
  private final SQLMetric[] metrics = new SQLMetric[COUNTS.length + 1];
  private final long[] accumulators = new long[COUNTS.length + 1];

  private OperatorMetrics(SparkContext context, String operator) {
    this.context = context;
    this.operator = operator;
    for (int i = 0; i < COUNTS.length; i++) {
      metrics[i] = SQLMetrics.createMetric(context, COUNTS[i]);
    }
    metrics[COUNTS.length] = SQLMetrics.createTimingMetric(context, "engine time", -1L);
    for (int i = 0; i < accumulators.length; i++) {
      accumulators[i] = AccumulatorContext.newId();
    }
  }

  /** The metrics of this operator, made when it is new. */
  public static OperatorMetrics of(SparkContext context, String operator) {
    synchronized (KNOWN) {
      OperatorMetrics known = (OperatorMetrics) KNOWN.get(operator);
      if (known == null || known.context != context) {
        known = new OperatorMetrics(context, operator);
        KNOWN.put(operator, known);
        if (KNOWN.size() > MOST) {
          KNOWN.remove(KNOWN.keySet().iterator().next());
        }
      }
      return known;
    }
  }

  /** A node's metrics and these. */
  public Map addedTo(Map others) {
    Map all = others;
    for (int i = 0; i < metrics.length; i++) {
      all = (Map) all.updated("ai" + i, metrics[i]);
    }
    return all;
  }

  /** Add what one task did. execution: the id of its query as text, null outside of one. */
  public void add(String execution, int stage, long[] counts, double seconds) {
    if (execution != null) {
      List updates = Nil$.MODULE$;
      for (int i = 0; i < metrics.length; i++) {
        long value = i < counts.length ? counts[i] : Math.round(seconds * 1000);
        updates = updates.$colon$colon(new Tuple2(Long.valueOf(metrics[i].id()), Long.valueOf(value)));
      }
      context.listenerBus().post(new SparkListenerDriverAccumUpdates(Long.parseLong(execution), updates));
    }
    Option found = context.dagScheduler().stageIdToStage().get(Integer.valueOf(stage));
    if (found.isDefined()) {
      StageInfo info = ((Stage) found.get()).latestInfo();
      for (int i = 0; i < counts.length; i++) {
        put(info, i, COUNTS[i], Long.valueOf(counts[i] + before(info, i).longValue()));
      }
      put(info, counts.length, "engine seconds", Double.valueOf(seconds + before(info, counts.length).doubleValue()));
    }
  }

  private Number before(StageInfo info, int index) {
    Option known = info.accumulables().get(Long.valueOf(accumulators[index]));
    return known.isDefined() ? (Number) ((AccumulableInfo) known.get()).value().get() : (Number) Long.valueOf(0);
  }

  private void put(StageInfo info, int index, String name, Number value) {
    Option shown = Option.apply(operator + ": " + name);
    long id = accumulators[index];
    info.accumulables().put(
        Long.valueOf(id),
        new AccumulableInfo(id, shown, Option.empty(), Option.apply(value), false, false, Option.empty()));
  }
}
