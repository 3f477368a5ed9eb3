package org.quailspark;

import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.status.api.v1.StageData;
import org.apache.spark.ui.scope.RDDOperationCluster;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;

/** SparkSession => AiOperatorStrategy, as SparkSessionExtensions wants it; and the door through which Python reaches the UI. */
public class AiOperatorStrategyBuilder extends AbstractFunction1 {
  public Object apply(Object session) {
    return new AiOperatorStrategy();
  }

  /** See OperatorMetrics.add; counts is a list of numbers. */
  public void add(
      SparkContext context, String operator, String execution, int stage, List counts, double seconds) {
    long[] values = new long[counts.size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = ((Number) counts.get(i)).longValue();
    }
    OperatorMetrics.of(context, operator).add(execution, stage, values, seconds);
  }

  /** Finished tasks and all tasks of the active stages that run this operator. */
  public int[] tasks(SparkContext context, String operator) {
    int[] found = {0, 0};
    for (Iterator it = context.statusStore().activeStages().iterator(); it.hasNext(); ) {
      StageData stage = (StageData) it.next();
      if (names(context.statusStore().operationGraphForStage(stage.stageId()).rootCluster(), operator)) {
        found[0] += stage.numCompletedIndices();
        found[1] += stage.numTasks();
      }
    }
    return found;
  }

  private static boolean names(RDDOperationCluster cluster, String operator) {
    if (cluster.name().equals(operator)) {
      return true;
    }
    for (Iterator it = cluster.childClusters().iterator(); it.hasNext(); ) {
      if (names((RDDOperationCluster) it.next(), operator)) {
        return true;
      }
    }
    return false;
  }
}
