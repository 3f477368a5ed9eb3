package org.quailspark;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** Makes the MapInArrow of an AI operator an AiOperatorExec; leaves all else to Spark. */
public class AiOperatorStrategy extends SparkStrategy {
  public Seq apply(LogicalPlan plan) {
    if (plan instanceof MapInArrow) {
      MapInArrow node = (MapInArrow) plan;
      if (AiOperatorExec.operatorOf(node.functionExpr()) != null) {
        return Nil$.MODULE$.$colon$colon(
            new AiOperatorExec(
                node.functionExpr(), node.output(), planLater((LogicalPlan) node.child()), node.isBarrier(), node.profile()));
      }
    }
    return Nil$.MODULE$;
  }
}
